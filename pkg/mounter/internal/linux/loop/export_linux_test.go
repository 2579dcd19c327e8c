package loop

// For the tests of this package with a Host.

const OldReadAhead = oldReadAhead
const SectorSize = sectorSize

type Attached = attached

var ConfigureFree = configureFree
var IsBuffered = isBuffered
var LastFile = (*Devices).lastFile
var NoteFile = (*Devices).noteFile
var ReadAheadOf = readAheadOf
var SequenceOf = sequenceOf
