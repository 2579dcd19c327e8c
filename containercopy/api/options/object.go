package options

import (
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// DeepCopyObject implements runtime.Object.
func (o *PodCopyFromOptions) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// DeepCopyObject implements runtime.Object.
func (o *PodCopyToOptions) DeepCopyObject() runtime.Object {
	c := *o
	if o.Size != nil {
		size := *o.Size
		c.Size = &size
	}
	if o.Checksum != nil {
		sum := *o.Checksum
		c.Checksum = &sum
	}
	return &c
}

// AddToScheme registers the options, and their conversions: from query parameters, and to
// themselves for the policies and webhooks of the admission. Internal and external options are the
// same types.
func AddToScheme(s *runtime.Scheme) error {
	for _, v := range []schema.GroupVersion{Version, {Group: Version.Group, Version: runtime.APIVersionInternal}} {
		s.AddKnownTypes(v, &PodCopyFromOptions{}, &PodCopyToOptions{})
	}
	metav1.AddToGroupVersion(s, Version)
	for _, c := range []struct {
		from, to any
		convert  conversion.ConversionFunc
	}{
		{(*url.Values)(nil), (*PodCopyFromOptions)(nil), func(from, to any, _ conversion.Scope) error {
			return to.(*PodCopyFromOptions).Parse(*from.(*url.Values))
		}},
		{(*url.Values)(nil), (*PodCopyToOptions)(nil), func(from, to any, _ conversion.Scope) error {
			return to.(*PodCopyToOptions).Parse(*from.(*url.Values))
		}},
		{(*PodCopyFromOptions)(nil), (*PodCopyFromOptions)(nil), func(from, to any, _ conversion.Scope) error {
			*to.(*PodCopyFromOptions) = *from.(*PodCopyFromOptions).DeepCopyObject().(*PodCopyFromOptions)
			return nil
		}},
		{(*PodCopyToOptions)(nil), (*PodCopyToOptions)(nil), func(from, to any, _ conversion.Scope) error {
			*to.(*PodCopyToOptions) = *from.(*PodCopyToOptions).DeepCopyObject().(*PodCopyToOptions)
			return nil
		}},
	} {
		if err := s.AddConversionFunc(c.from, c.to, c.convert); err != nil {
			return err
		}
	}
	return nil
}

// OpenAPIModelName is the name of the options in OpenAPI documents.
func (PodCopyFromOptions) OpenAPIModelName() string {
	return "dev.causeway.copy.v1alpha1.PodCopyFromOptions"
}

// OpenAPIModelName is the name of the options in OpenAPI documents.
func (PodCopyToOptions) OpenAPIModelName() string {
	return "dev.causeway.copy.v1alpha1.PodCopyToOptions"
}
