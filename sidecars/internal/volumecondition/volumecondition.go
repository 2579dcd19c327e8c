// Package volumecondition decodes the message VolumeCondition of CSI v1.12. CSI v1.13 removed the
// message and reserves its numbers, so the Go package of v1.13 keeps it among the unknown fields.
// This package has no Kubernetes imports, so that its fuzz target compiles in seconds.
package volumecondition

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Numbers in CSI spec v1.12, csi.proto.
const (
	Capability           = 11 // VOLUME_CONDITION of the controller service
	fieldVolumeCondition = 2  // of VolumeStatus in ListVolumesResponse and in ControllerGetVolumeResponse
	fieldAbnormal        = 1
	fieldMessage         = 2
)

// Condition is the message VolumeCondition.
type Condition struct {
	Abnormal bool
	Message  string
}

var errNoCondition = errors.New("the status has no volume_condition, which the capability VOLUME_CONDITION requires")

// Of returns the condition in a VolumeStatus, which may be nil.
func Of(status proto.Message) (Condition, error) {
	return decode(status.ProtoReflect().GetUnknown())
}

// decode decodes volume_condition from the unknown fields of a VolumeStatus. A driver may send any
// bytes. If the field occurs more than once, the occurrences are merged, as the protobuf encoding
// requires.
func decode(unknown []byte) (c Condition, err error) {
	found := false
	err = eachField(unknown, func(n protowire.Number, t protowire.Type, value []byte) error {
		if n != fieldVolumeCondition {
			return nil
		}
		if t != protowire.BytesType {
			return fmt.Errorf("invalid volume_condition: wire type %d, must be %d", t, protowire.BytesType)
		}
		found = true
		message, _ := protowire.ConsumeBytes(value)
		return c.merge(message)
	})
	if err == nil && !found {
		err = errNoCondition
	}
	if err != nil {
		return Condition{}, err
	}
	return c, nil
}

// merge decodes a VolumeCondition over c.
func (c *Condition) merge(b []byte) error {
	return eachField(b, func(n protowire.Number, t protowire.Type, value []byte) error {
		switch {
		case n == fieldAbnormal && t == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			c.Abnormal = protowire.DecodeBool(v)
		case n == fieldMessage && t == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			c.Message = string(v)
		case n == fieldAbnormal, n == fieldMessage:
			return fmt.Errorf("invalid field %d of volume_condition: wire type %d", n, t)
		}
		return nil
	})
}

// eachField calls take with each field of an encoded message. The values are complete.
func eachField(b []byte, take func(n protowire.Number, t protowire.Type, value []byte) error) error {
	for len(b) > 0 {
		n, t, length := protowire.ConsumeTag(b)
		if length < 0 {
			return protowire.ParseError(length)
		}
		if n > protowire.MaxValidNumber {
			return fmt.Errorf("invalid field number %d: must be at most %d", n, protowire.MaxValidNumber)
		}
		b = b[length:]
		if length = protowire.ConsumeFieldValue(n, t, b); length < 0 {
			return protowire.ParseError(length)
		}
		if err := take(n, t, b[:length]); err != nil {
			return err
		}
		b = b[length:]
	}
	return nil
}
