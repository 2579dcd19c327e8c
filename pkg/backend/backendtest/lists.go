package backendtest

import (
	"context"
	"fmt"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// list is a list of objects that the backend returns in pages.
type list struct {
	add    func(name string) (id string)
	remove func(id string)
	page   func(after string, limit int) (ids []string, more bool, err error)
}

// volumes returns the list of all volumes.
func volumes(s *subject) list {
	l := optional[backend.Lister](s)
	return list{
		add:    func(name string) string { return s.create(s.request(name)).ID },
		remove: s.delete,
		page: func(after string, limit int) (ids []string, more bool, err error) {
			volumes, more, err := l.List(context.Background(), after, limit)
			for _, v := range volumes {
				ids = append(ids, v.ID)
			}
			return ids, more, err
		},
	}
}

// pages reads the list in pages of several sizes.
func pages(s *subject, l list) {
	var want []string
	for i := range 7 {
		want = append(want, l.add(fmt.Sprint("listed-", i)))
	}
	slices.Sort(want)
	for limit := 1; limit <= 8; limit++ {
		var got []string
		for after, more := "", true; more; {
			page, m, err := l.page(after, limit)
			if err != nil || len(page) == 0 || len(page) > limit || len(got) > len(want) {
				s.Fatalf("a page with limit %d has %d entries, %v", limit, len(page), err)
			}
			got = append(got, page...)
			after, more = got[len(got)-1], m
		}
		if !slices.Equal(got, want) {
			s.Errorf("pages of %d list %v, want %v", limit, got, want)
		}
	}
}

// churn reads the list while objects are added and removed.
func churn(s *subject, l list) {
	stays, goes := map[string]bool{}, []string{}
	for i := range 40 {
		if id := l.add(fmt.Sprint("listed-", i)); i%2 == 0 {
			stays[id] = true
		} else {
			goes = append(goes, id)
		}
	}
	seen := map[string]bool{}
	for i, after, more := 0, "", true; more; i++ {
		page, m, err := l.page(after, 3)
		if err != nil || len(page) == 0 {
			s.Fatalf("the page after %q = %v, %v, want entries", after, page, err)
		}
		for _, id := range page {
			if seen[id] {
				s.Errorf("%s is listed twice", id)
			}
			seen[id] = true
			if !stays[id] { // also the last entry of a page: the next page then starts after a removed object
				l.remove(id)
			}
		}
		l.add(fmt.Sprint("new-", i))
		if len(goes) > i {
			l.remove(goes[i])
		}
		if after, more = page[len(page)-1], m; i > 200 {
			s.Fatal("the list does not end")
		}
	}
	for id := range stays {
		if !seen[id] {
			s.Errorf("%s existed all the time and is not listed", id)
		}
	}
}
