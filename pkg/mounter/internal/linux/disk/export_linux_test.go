package disk

// For the tests of this package with a Host.

const FormatsDir = formatsDir

var BeginFormat = (*Disks).beginFormat
var Failure = (*programs).failure
var FormatPath = (*Disks).formatPath
var NewFormatting = newFormatting
var NewPrograms = (*Disks).newPrograms
var ReadFormatting = (*Disks).readFormatting
var SequenceIn = sequenceIn
var WriteFormatting = (*Disks).writeFormatting
