module github.com/causeway-csi/causeway/test/cluster/tools/pause

go 1.26.0
