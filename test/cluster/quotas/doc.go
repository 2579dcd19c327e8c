// Package quotas uses the driver on a guest, whose kernel has project quotas for directories of the
// backend hostpath, and whose clock can be wrong. The package has tests only: make test-guests.
package quotas
