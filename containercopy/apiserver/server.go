package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/causeway-csi/causeway/containercopy/api/options"
)

// Scheme has the types of the API.
var Scheme = newScheme()

// Codecs encode the types of Scheme.
var Codecs = serializer.NewCodecFactory(Scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := options.AddToScheme(s); err != nil {
		panic(err) // a conversion function has the wrong signature
	}
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, core)
	s.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{},
		&metav1.APIResourceList{})
	return s
}

// Configure sets the parts of the configuration of a server that depend on the API.
func Configure(c *server.Config) {
	namer := openapi.NewDefinitionNamer(Scheme)
	c.OpenAPIConfig = server.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIV3Config.Info.Title = "Container copy", "Container copy"
	c.BuildHandlerChainFunc = limitUsers
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"),
		sets.NewString(options.Proxy))
}

// Install adds the resources to a server.
func Install(s *server.GenericAPIServer, storage map[string]rest.Storage) error {
	group := server.NewDefaultAPIGroupInfo(options.Version.Group, Scheme, runtime.NewParameterCodec(Scheme), Codecs)
	group.VersionedResourcesStorageMap[options.Version.Version] = storage
	return s.InstallAPIGroup(&group)
}

// definitions describe the types that the documents of the API name.
func definitions(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := map[string]common.OpenAPIDefinition{}
	for _, d := range []struct {
		model       interface{ OpenAPIModelName() string }
		description string
	}{
		{metav1.APIGroup{}, "The name and the versions of a group."},
		{metav1.APIGroupList{}, "The groups of the server."},
		{metav1.APIResourceList{}, "The resources of a version of a group."},
		{metav1.Status{}, "The result of a request that returns no other object."},
		{version.Info{}, "The version of the server."},
		{options.PodCopyFromOptions{}, "The options of a copy from a container."},
		{options.PodCopyToOptions{}, "The options of a copy to a container."},
	} {
		all[d.model.OpenAPIModelName()] = object(d.description)
	}
	return all
}

// object returns the definition of an object with any fields.
func object(description string) common.OpenAPIDefinition {
	return common.OpenAPIDefinition{Schema: spec.Schema{
		SchemaProps: spec.SchemaProps{Type: []string{"object"}, Description: description},
		VendorExtensible: spec.VendorExtensible{
			Extensions: spec.Extensions{"x-kubernetes-preserve-unknown-fields": true}},
	}}
}
