// Package suite is Kubernetes' own suite of storage tests, for the drivers that driver files
// describe. Its tests are a program, suite.test, which test/e2e runs.
package suite
