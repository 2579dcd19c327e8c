package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/test/cluster/local"
)

// partDir is the directory of the program nodepart on a node, which goes with the node.
const partDir = "/tmp/nodepart"

// fullname is the prefix of the names of the chart's objects.
const fullname = "copy-causeway-copy"

// nodePart compares the node's part of a copy of 1 KiB with an exec of tar by the container
// runtime.
func (p play) nodePart() error {
	if err := p.copy(0, "", p.path("1KiB"), "bench:/scratch/part"); err != nil {
		return err
	}
	n, err := p.node()
	if err != nil {
		return err
	}
	if err := p.bringPart(n); err != nil {
		return err
	}
	var pod core.Pod
	var agents core.PodList
	if err := p.get(&pod, "pod", "bench"); err != nil {
		return err
	}
	if err := p.get(&agents, "-n", namespace, "pods", "-l", "app.kubernetes.io/name="+fullname+"-agent",
		"--field-selector=spec.nodeName=node-1"); err != nil {
		return err
	}
	if len(agents.Items) != 1 || len(pod.Status.ContainerStatuses) != 1 {
		return fmt.Errorf("%d agents, %d containers", len(agents.Items), len(pod.Status.ContainerStatuses))
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	out, err := n.Run(p.ctx, partDir+"/nodepart", "--agent="+agents.Items[0].Status.PodIP+":9840",
		"--agent-name="+fullname+"-agent", "--tls-dir="+partDir, "--container="+id, "--path=/scratch/part",
		"--pod="+pod.Namespace+"/"+pod.Name+"/"+string(pod.UID))
	fmt.Println("| Node's part | exec of tar | agent | times |")
	fmt.Print("|---|---|---|---|\n", out)
	return err
}

// node returns the node of the pods of the benchmark.
func (p play) node() (local.Node, error) {
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return local.Node{}, err
	}
	i := slices.IndexFunc(nodes, func(n local.Node) bool { return n.Name == "node-1" })
	if i < 0 {
		return local.Node{}, errors.New("there is no node-1")
	}
	return nodes[i], nil
}

// get reads an object.
func (p play) get(into any, args ...string) error {
	out, err := p.kubectl.Run(p.ctx, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// bringPart brings the program and the certificate of the API server to a node.
func (p play) bringPart(n local.Node) error {
	if err := p.goes(nil, "build", "-trimpath", "-o", p.path("nodepart"), "./internal/nodepart"); err != nil {
		return err
	}
	program, err := os.ReadFile(p.path("nodepart"))
	if err != nil {
		return err
	}
	files := map[string][]byte{"nodepart": program}
	var secret core.Secret
	if err := p.get(&secret, "-n", namespace, "secret", fullname+"-client-generated"); err != nil {
		return err
	}
	for name, content := range secret.Data {
		files[name] = content
	}
	for name, content := range files {
		cmd, err := n.Command(p.ctx, "sh", "-c", "mkdir -p "+partDir+" && base64 -d >"+partDir+"/"+name+
			" && chmod 700 "+partDir+"/"+name)
		if err != nil {
			return err
		}
		cmd.Stdin = bytes.NewReader([]byte(base64.StdEncoding.EncodeToString(content)))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
	}
	return nil
}
