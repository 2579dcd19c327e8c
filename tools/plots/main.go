// Command plots draws the plots of the pages as SVG, from the tables of the pages: so a plot always
// has the figures of its table. It writes docs/reference/plots; with -check it compares the files
// instead.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// colors of the series, readable on a white and on a dark page, also with a deficiency of color
// vision.
var colors = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
}

// chart shows some rows of a table: as bars, or with log as lines.
type chart struct {
	file, page, title, unit string
	log                     bool

	groups []string // names of the groups of bars
	series []series
}

// series is a row or a column of a table.
type series struct {
	name  string
	cells []cell // for each group
}

// cell is a cell of a table: the row by the beginning of its line, and the number of the column.
type cell struct {
	row    string
	column int
}

// charts are all plots.
var charts = []chart{
	{
		file: "mounts.svg", page: "docs/reference/benchmarks.md", title: "Calls of the driver and programs", unit: "µs",
		groups: []string{"publish", "unpublish", "stats"},
		series: []series{
			{"program, 2,000 mounts", []cell{
				{"| exec `mount --bind` |", 2}, {"| exec `umount` |", 2}, {"| exec `findmnt` |", 2}}},
			{"driver, 2,000 mounts", []cell{
				{"| **NodePublishVolume** |", 2}, {"| **NodeUnpublishVolume** |", 2}, {"| **NodeGetVolumeStats** |", 2}}},
			{"driver, 10 mounts", []cell{
				{"| **NodePublishVolume** |", 1}, {"| **NodeUnpublishVolume** |", 1}, {"| **NodeGetVolumeStats** |", 1}}},
		},
	},
	{
		file: "sidecars.svg", page: "docs/reference/benchmarks.md", title: "Separate sidecars and csi-sidecars", unit: "MB, MiB",
		groups: []string{"binaries, MB", "RSS, MiB", "private memory, MiB"},
		series: []series{
			{"separate", []cell{{"| binaries, MB |", 1}, {"| RSS, MiB |", 1}, {"| private dirty memory, MiB |", 1}}},
			{"csi-sidecars", []cell{{"| binaries, MB |", 2}, {"| RSS, MiB |", 2}, {"| private dirty memory, MiB |", 2}}},
		},
	},
	{
		file: "router.svg", page: "docs/reference/router-cost.md", title: "Memory of the controllers", unit: "MiB", log: true,
		groups: []string{"10 nodes", "100 nodes", "1,000 nodes"},
		series: []series{
			{"node deployment", []cell{{"| Memory (RSS), MiB |", 2}, {"| Memory (RSS), MiB |", 3}, {"| Memory (RSS), MiB |", 4}}},
			{"router, upstream's sidecars", []cell{
				{"| | router, upstream's sidecars |", 2}, {"| | router, upstream's sidecars |", 3},
				{"| | router, upstream's sidecars |", 4}}},
			{"router, csi-sidecars", []cell{
				{"| | router, `csi-sidecars` |", 2}, {"| | router, `csi-sidecars` |", 3}, {"| | router, `csi-sidecars` |", 4}}},
		},
	},
}

// number returns the number in a cell of a page: the first row with that beginning counts.
func number(page string, c cell) (float64, error) {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, c.row) {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if c.column >= len(cells) {
			return 0, fmt.Errorf("row %q has no column %d", c.row, c.column)
		}
		text := strings.TrimSpace(cells[c.column])
		end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789.,", r) })
		if end >= 0 {
			text = text[:end]
		}
		n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		if err != nil {
			return 0, fmt.Errorf("row %q, column %d: %w", c.row, c.column, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("no row %q", c.row)
}

// draw draws a chart.
func (c chart) draw(root string) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(root, c.page))
	if err != nil {
		return nil, err
	}
	p := c.empty()
	width := vg.Points(26)
	for i, s := range c.series {
		var values plotter.Values
		for _, cell := range s.cells {
			n, err := number(string(page), cell)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.page, err)
			}
			values = append(values, n)
		}
		offset := width * vg.Length(2*i-len(c.series)+1) / 2
		if c.log {
			offset = 0
			err = addLine(p, s.name, colors[i], values)
		} else {
			err = addBars(p, s.name, colors[i], values, width, offset)
		}
		if err != nil {
			return nil, err
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: points(values), Labels: texts(values)})
		if err != nil {
			return nil, err
		}
		for j := range labels.TextStyle {
			labels.TextStyle[j].XAlign = draw.XCenter
		}
		labels.Offset = vg.Point{X: offset, Y: vg.Points(3)}
		p.Add(labels)
	}
	p.Y.Max *= 1.12
	if c.log {
		p.Y.Min, p.Y.Max = 100, p.Y.Max*2
	}
	p.X.Min, p.X.Max = -0.5, float64(len(c.groups))-0.5
	p.NominalX(c.groups...)
	p.BackgroundColor = nil
	canvas := vgsvg.New(vg.Points(520), vg.Points(300))
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return schemes(out.Bytes()), nil
}

// empty returns the plot of a chart without its series.
func (c chart) empty() *plot.Plot {
	plot.DefaultFont.Variant = "Sans" // as the style sheet shows the text
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = c.title, c.unit
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(8)
	p.Legend.Padding = vg.Points(3)
	if c.log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	} else {
		p.Y.Min = 0
	}
	return p
}

// addBars adds a series as bars, each offset from the middle of its group.
func addBars(p *plot.Plot, name string, c color.Color, values plotter.Values, width, offset vg.Length) error {
	bars, err := plotter.NewBarChart(values, width)
	if err != nil {
		return err
	}
	bars.Color, bars.LineStyle.Width, bars.Offset = c, 0, offset
	p.Add(bars)
	p.Legend.Add(name, bars)
	return nil
}

// addLine adds a series as a line: bars have no beginning on a logarithmic axis.
func addLine(p *plot.Plot, name string, c color.Color, values plotter.Values) error {
	line, dots, err := plotter.NewLinePoints(points(values))
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(2)
	dots.Color, dots.Shape = c, draw.CircleGlyph{}
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}

func points(values plotter.Values) (all plotter.XYs) {
	for i, v := range values {
		all = append(all, plotter.XY{X: float64(i), Y: v})
	}
	return all
}

func texts(values plotter.Values) (all []string) {
	for _, v := range values {
		all = append(all, strconv.FormatFloat(v, 'f', -1, 64))
	}
	return all
}

// schemes makes text and axes readable with a light and with a dark page: a style sheet inside of
// an SVG follows the color scheme of the reader, also in an img element.
func schemes(svg []byte) []byte {
	const style = `<style>
text { fill: #1b1f24 !important; font-family: sans-serif !important; }
path[style*="stroke:#000000"] { stroke: #57606a !important; }
@media (prefers-color-scheme: dark) {
  text { fill: #dde3ea !important; }
  path[style*="stroke:#000000"] { stroke: #9aa5b1 !important; }
}
</style>
`
	at := bytes.IndexByte(svg[bytes.Index(svg, []byte("<svg")):], '>') + bytes.Index(svg, []byte("<svg")) + 1
	return append(append(bytes.Clone(svg[:at]), "\n"+style...), svg[at:]...)
}

func run(root string, check bool) error {
	dir := filepath.Join(root, "docs", "reference", "plots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range charts {
		svg, err := c.draw(root)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, c.file)
		if !check {
			if err := os.WriteFile(path, svg, 0o644); err != nil {
				return err
			}
			continue
		}
		if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, svg) {
			return fmt.Errorf("%s does not show the table of %s: run make plots", path, c.page)
		}
	}
	return nil
}

func main() {
	check := flag.Bool("check", false, "compare the files with the pages, and write nothing")
	root := flag.String("root", ".", "directory of the repository")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}
