package backend_test

import (
	"flag"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
)

func ExampleParseSize() {
	var limit int64
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	flags.Func("limit", "Greatest `size` of a volume, such as 10Gi.", func(s string) (err error) {
		limit, err = backend.ParseSize(s)
		return err
	})
	if err := flags.Parse([]string{"--limit=10Gi"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limit)
	// Output: 10737418240
}
