package volumeid

// Finder is an io.Writer that finds IDs in text, regardless of the characters around them: in JSON
// inside a JSON string, an ID may follow the n of \n. It may report text that is not an ID, and
// misses none: 58 digits in a row may hold two IDs. A Finder with Found is ready for use.
type Finder struct {
	// Found gets every substring that may be an ID. Found must not keep the slice.
	Found func(id []byte)

	digits []byte // the last digits in a row
}

// Write searches the next part of the text. Write returns no error.
func (f *Finder) Write(text []byte) (int, error) {
	for _, c := range text {
		if !isDigit(c) {
			f.digits = f.digits[:0]
			continue
		}
		if len(f.digits) >= 16*Len {
			f.digits = f.digits[:copy(f.digits, f.digits[len(f.digits)-Len+1:])]
		}
		f.digits = append(f.digits, c)
		if n := len(f.digits) - Len; n >= 0 {
			switch Kind(f.digits[n]) {
			case Volume, Inline, Snapshot, Group:
				f.Found(f.digits[n:])
			}
		}
	}
	return len(text), nil
}
