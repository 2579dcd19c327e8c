package kube

func slim(o any) (any, error) { return o, nil }

// Slim is slim.
func Slim(o any) (any, error) { return slim(o) }
