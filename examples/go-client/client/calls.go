package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	tidemark "example/go-client/tidemark/v1"
)

// Record is a record in plain form; a nil Key or Value is null.
type Record struct {
	Offset  int64 // set in what Fetch returns
	Time    time.Time
	Key     []byte
	Value   []byte
	Headers map[string]string
}

// CreateTopic makes a topic; one that exists already is no error.
func (c *Client) CreateTopic(ctx context.Context, name string, partitions, replicas int32, configs map[string]string) error {
	request := &tidemark.CreateTopicsRequest{Topics: []*tidemark.CreateTopicsRequest_CreatableTopic{{
		Name: name, NumPartitions: &partitions, ReplicationFactor: &replicas, Configs: configs,
	}}}
	return retry(ctx, func() error {
		// Any node forwards it to the active controller.
		return c.onAny(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
			answer, err := tidemark.NewAdminClient(conn).CreateTopics(ctx, request)
			if err != nil {
				return err
			}
			if err := asError(answer.ErrorCode, answer.ErrorMessage); err != nil {
				return err
			}
			for _, one := range answer.Topics {
				// Perhaps made by the first try, whose answer was lost.
				if one.ErrorCode == tidemark.ErrorCode_TOPIC_ALREADY_EXISTS {
					continue
				}
				if err := asError(one.ErrorCode, one.ErrorMessage); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Produce appends records to a partition and returns the offset of the first; the others follow without a gap. All
// in-sync replicas have them by then.
//
// These plain records have no sequence numbers: if an answer is lost, Produce sends again, and the records are in the
// log twice. It is at least once. Call it again for the partition only after it returned, and the order is kept.
func (c *Client) Produce(ctx context.Context, topic string, partition int32, records []Record) (int64, error) {
	data := &tidemark.ProduceRequest_PartitionProduceData{Topic: topic, Index: partition}
	for _, record := range records {
		data.PlainRecords = append(data.PlainRecords, toWire(record))
	}
	request := &tidemark.ProduceRequest{
		TimeoutMs:     int32(requestTimeout.Milliseconds() / 2),
		PartitionData: []*tidemark.ProduceRequest_PartitionProduceData{data},
	}
	base := int64(-1)
	err := c.onLeader(ctx, topic, partition, func(ctx context.Context, log tidemark.LogClient) error {
		answer, err := log.Produce(ctx, request)
		if err != nil {
			return err
		}
		if len(answer.Responses) != 1 {
			return errors.New("produce: not one answer for one partition")
		}
		one := answer.Responses[0]
		base = one.BaseOffset
		return asError(one.ErrorCode, one.ErrorMessage)
	})
	return base, err
}

// Fetch returns records from an offset on, and the offset to fetch next. It waits half a second for the first record;
// no record is no error.
//
// The next offset is not that of the last record plus one: compaction and the marks of transactions leave gaps.
func (c *Client) Fetch(ctx context.Context, topic string, partition int32, offset int64) ([]Record, int64, error) {
	known, err := c.topic(ctx, topic)
	if err != nil {
		return nil, offset, err
	}
	request := &tidemark.FetchRequest{
		MaxWaitMs:    500,
		MinBytes:     1,
		MaxBytes:     fetchMaxBytes,
		PlainRecords: true,
		Partitions: []*tidemark.FetchRequest_FetchPartition{{
			// By its id: if the topic is deleted and made anew, this is an error and not a record of the new one.
			TopicId:           []byte(known.id),
			Partition:         partition,
			FetchOffset:       offset,
			PartitionMaxBytes: proto.Int32(fetchMaxBytes),
		}},
	}
	var records []Record
	next := offset
	err = c.onLeader(ctx, topic, partition, func(ctx context.Context, log tidemark.LogClient) error {
		answer, err := log.Fetch(ctx, request)
		if err != nil {
			return err
		}
		if err := asError(answer.ErrorCode, answer.ErrorMessage); err != nil {
			return err
		}
		if len(answer.Responses) != 1 {
			return errors.New("fetch: not one answer for one partition")
		}
		one := answer.Responses[0]
		if err := asError(one.ErrorCode, one.ErrorMessage); err != nil {
			return err
		}
		for _, record := range one.PlainRecords {
			records = append(records, fromWire(record))
		}
		if one.NextOffset > 0 {
			next = one.NextOffset
		}
		return nil
	})
	return records, next, err
}

// Offsets that stand for a place in ListOffset.
const (
	Earliest = int64(-2)
	Latest   = int64(-1)
)

// ListOffset returns the offset of the first record at or after a time in ms, or of Earliest or Latest; -1: none.
func (c *Client) ListOffset(ctx context.Context, topic string, partition int32, timestamp int64) (int64, error) {
	request := &tidemark.ListOffsetsRequest{
		Partitions: []*tidemark.ListOffsetsRequest_ListOffsetsPartition{{
			Topic: topic, PartitionIndex: partition, Timestamp: timestamp,
		}},
	}
	offset := int64(-1)
	err := c.onLeader(ctx, topic, partition, func(ctx context.Context, log tidemark.LogClient) error {
		answer, err := log.ListOffsets(ctx, request)
		if err != nil {
			return err
		}
		if len(answer.Partitions) != 1 {
			return errors.New("list offsets: not one answer for one partition")
		}
		one := answer.Partitions[0]
		offset = one.Offset
		return asError(one.ErrorCode, one.ErrorMessage)
	})
	return offset, err
}

func toWire(record Record) *tidemark.Record {
	wire := &tidemark.Record{Key: record.Key, Value: record.Value}
	if !record.Time.IsZero() {
		wire.TimestampMs = record.Time.UnixMilli()
	}
	for key, value := range record.Headers {
		wire.Headers = append(wire.Headers, &tidemark.Header{Key: key, Value: []byte(value)})
	}
	return wire
}

func fromWire(wire *tidemark.Record) Record {
	record := Record{Offset: wire.Offset, Time: time.UnixMilli(wire.TimestampMs), Key: wire.Key, Value: wire.Value}
	if len(wire.Headers) > 0 {
		record.Headers = make(map[string]string, len(wire.Headers))
		for _, header := range wire.Headers {
			record.Headers[header.Key] = string(header.Value)
		}
	}
	return record
}
