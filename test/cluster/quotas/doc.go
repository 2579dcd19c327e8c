// Package quotas uses directories of the backend hostpath on a guest, whose kernel has project
// quotas. The package has tests only: make test-guests.
package quotas
