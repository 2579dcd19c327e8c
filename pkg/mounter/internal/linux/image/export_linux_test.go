package image

// For the tests of this package with a Host.

var FillImage = (*Images).fillImage
