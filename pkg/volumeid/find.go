package volumeid

// Finder finds IDs in the text that is written to it, whatever stands around them: in JSON that is a string of other JSON,
// an ID may come right after the n of \n. So it finds too much rather than too little: of 58 digits in a row, two
// may be IDs. The zero value with a Found is ready for use.
type Finder struct {
	// Found gets every stretch of text that may be an ID. It may not keep it.
	Found func(id []byte)

	digits []byte // the last that came, without anything else between them
}

// Write looks at the next piece of text. It never fails.
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
