package nodes

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// nameServer answers for a single name, as the test sets.
type nameServer struct {
	packets net.PacketConn
	streams net.Listener

	mu        sync.Mutex
	addresses []string
	silent    bool // no question is answered
	overTCP   int  // questions that came over TCP
}

const nodesName = "nodes.test"

// maxPacket is the maximum size of an answer over UDP, in bytes, for any client: the limit of the
// oldest servers. A longer answer is cut, and marked as such.
const maxPacket = 512

// newNameServer starts a name server on the wire.
func newNameServer(w *wire) (*nameServer, error) {
	s := &nameServer{}
	err := w.in(func() (err error) {
		if s.packets, err = net.ListenPacket("udp4", wireAddress+":53"); err == nil {
			s.streams, err = net.Listen("tcp4", wireAddress+":53")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	go s.servePackets()
	go s.serveStreams()
	return s, nil
}

func (s *nameServer) close() { closed(s.packets, s.streams) }

// say makes these the addresses of the nodes.
func (s *nameServer) say(addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = slices.Clone(addresses)
}

// fallSilent stops the answers, or begins with them again.
func (s *nameServer) fallSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

func (s *nameServer) servePackets() {
	buffer := make([]byte, 4096)
	for {
		n, from, err := s.packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		if reply := s.answer(buffer[:n], maxPacket); reply != nil {
			s.packets.WriteTo(reply, from)
		}
	}
}

func (s *nameServer) serveStreams() {
	for {
		conn, err := s.streams.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var size uint16 // RFC 1035, 4.2.2
			for binary.Read(conn, binary.BigEndian, &size) == nil {
				question := make([]byte, size)
				if _, err := io.ReadFull(conn, question); err != nil {
					return
				}
				reply := s.answer(question, 1<<16-1)
				if reply == nil {
					return
				}
				s.mu.Lock()
				s.overTCP++
				s.mu.Unlock()
				conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		}()
	}
}

// answer returns the answer to a query, of at most so many bytes, or nil if the server is silent:
// RFC 1035, 4.1.
func (s *nameServer) answer(query []byte, most int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	const headerSize = 12
	if s.silent || len(query) < headerSize {
		return nil
	}
	name, rest, ok := bytes.Cut(query[headerSize:], []byte{0}) // the root ends the name
	if !ok || len(rest) < 4 {
		return nil
	}
	const response, authoritative, truncated, recursionDesired, recursionAvailable, nameError = 0x8000, 0x400, 0x200, 0x100, 0x80, 3
	flags := binary.BigEndian.Uint16(query[2:])&recursionDesired | response | authoritative | recursionAvailable
	const typeA, classInternet, nameOfQuestion, lifetime, size = 1, 1, 0xc000 | headerSize, 0, 4
	var answers []byte
	switch {
	case string(name) != "\x05nodes\x04test": // nodesName
		flags |= nameError
	case binary.BigEndian.Uint16(rest) == typeA:
		for _, a := range s.addresses {
			address := netip.MustParseAddr(a).As4()
			for _, field := range []uint16{nameOfQuestion, typeA, classInternet, lifetime, lifetime, size} {
				answers = binary.BigEndian.AppendUint16(answers, field)
			}
			answers = append(answers, address[:]...)
		}
	}
	const answerSize = 16
	question := query[headerSize : headerSize+len(name)+1+4]
	if headerSize+len(question)+len(answers) > most {
		flags, answers = flags|truncated, nil
	}
	reply := bytes.Clone(query[:2]) // the ID
	for _, field := range []uint16{flags, 1, uint16(len(answers) / answerSize), 0, 0} {
		reply = binary.BigEndian.AppendUint16(reply, field)
	}
	return append(append(reply, question...), answers...)
}
