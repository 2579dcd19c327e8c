package nodes

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers for one name, with what the test says.
type nameServer struct {
	packets net.PacketConn
	streams net.Listener

	mu        sync.Mutex
	addresses []string
	silent    bool // no question is answered
	overTCP   int  // questions that came over TCP
}

const nodesName = "nodes.test"

// maxPacket is how long an answer over UDP may be, in bytes, whatever a client says that it takes: as the oldest servers
// have it. What is longer is cut, and says so.
const maxPacket = 512

// newNameServer starts one on the wire.
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

// answer returns the answer to a question, of at most so many bytes, or nil if there is to be none.
func (s *nameServer) answer(question []byte, most int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parser dnsmessage.Parser
	header, err := parser.Start(question)
	if err != nil || s.silent {
		return nil
	}
	asked, err := parser.Question()
	if err != nil {
		return nil
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{asked},
	}
	switch {
	case asked.Name.String() != nodesName+".":
		reply.RCode = dnsmessage.RCodeNameError
	case asked.Type == dnsmessage.TypeA:
		for _, a := range s.addresses {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: asked.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
			})
		}
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > most {
		reply.Truncated, reply.Answers = true, nil
		packed, err = reply.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}
