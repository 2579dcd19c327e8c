package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func run(ctx context.Context) (err error) {
	fmt.Println("A CSI driver, with this program as the container orchestrator:")
	fmt.Println()
	d, err := startDriver(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.kill(), d.cleanUp()) }()
	if err := d.play(ctx); err != nil {
		return err
	}
	if err := d.playImages(ctx); err != nil {
		return err
	}
	if err := step(ctx, "the driver empties its trash", d.trashEmptied); err != nil {
		return err
	}
	if err := step(ctx, "SIGTERM, and the driver drains", d.terminate); err != nil {
		return err
	}
	return step(ctx, "nothing is left behind", d.nothingLeft)
}

// step runs a step and prints a line with its name, its result and its duration. A signal makes it
// fail and becomes its error: other errors are consequences.
func step(ctx context.Context, what string, do func() (result string, err error)) error {
	start := time.Now()
	result, err := do()
	took := time.Since(start)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		fmt.Printf("  %-44s FAILED\n", what)
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Printf("  %-44s %9s  %s\n", what, pretty(took), result)
	return nil
}

func pretty(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
