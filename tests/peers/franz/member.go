package main

import (
	"bufio"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	sessionTimeout   = 6 * time.Second
	heartbeatPeriod  = 500 * time.Millisecond
	offsetsTimeout   = 10 * time.Second
	recordsOfAPoll   = 500
	rebalanceTimeout = 20 * time.Second
)

// polled answers `poll MS`.
type polled struct {
	// Assignments counts those so far: records are in order within one.
	Assignments int64    `json:"assignments"`
	Records     []record `json:"records"`
	Error       string   `json:"error"`
}

type record struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value"`
}

// offsets answers `commit`, with what the coordinator took, and `committed`, with what it says.
type offsets struct {
	Offsets map[int32]int64 `json:"offsets"`
	Error   string          `json:"error"`
}

// groupMember is one member, with the partitions that it was assigned last.
type groupMember struct {
	client      *kgo.Client
	topic       string
	group       string
	assignments atomic.Int64
}

// member does what each line says, one after the other, and leaves its group at the end.
func member(bootstrap, topic, group string, in *bufio.Scanner, out *answers) error {
	one := &groupMember{topic: topic, group: group}
	assigned := func(context.Context, *kgo.Client, map[string][]int32) { one.assignments.Add(1) }
	options := append(common(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatPeriod),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.FetchMaxWait(300*time.Millisecond),
		kgo.OnPartitionsAssigned(assigned),
		// What a poll returned belongs to the assignment that it names until the next poll.
		kgo.BlockRebalanceOnPoll(),
	)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	one.client = client
	defer client.CloseAllowingRebalance()
	for in.Scan() {
		var order string
		var wait int
		fmt.Sscan(in.Text(), &order, &wait)
		switch order {
		case "poll":
			out.write(one.poll(time.Duration(wait) * time.Millisecond))
		case "commit":
			out.write(one.commit())
		case "committed":
			out.write(one.committed())
		default:
			return fmt.Errorf("%q is no order", in.Text())
		}
	}
	return nil
}

// poll returns what there is within a time; nothing is no error.
func (one *groupMember) poll(wait time.Duration) polled {
	one.client.AllowRebalance()
	within, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	fetches := one.client.PollRecords(within, recordsOfAPoll)
	answer := polled{Assignments: one.assignments.Load(), Records: []record{}}
	for _, failed := range fetches.Errors() {
		if within.Err() == nil {
			answer.Error = failed.Err.Error()
		}
	}
	fetches.EachRecord(func(found *kgo.Record) {
		answer.Records = append(answer.Records, record{
			Partition: found.Partition, Offset: found.Offset, Value: string(found.Value),
		})
	})
	return answer
}

// commit commits all that polls returned and returns once the coordinator has answered.
func (one *groupMember) commit() offsets {
	within, cancel := context.WithTimeout(context.Background(), offsetsTimeout)
	defer cancel()
	answer := offsets{Offsets: map[int32]int64{}}
	wanted := one.client.UncommittedOffsets()
	one.client.CommitOffsetsSync(within, wanted, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		answer.Error = text(err)
		if err != nil {
			return
		}
		for _, topic := range response.Topics {
			for _, partition := range topic.Partitions {
				if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
					answer.Error = err.Error()
					continue
				}
				answer.Offsets[partition.Partition] = wanted[topic.Topic][partition.Partition].Offset
			}
		}
	})
	return answer
}

// committed asks the coordinator, of all partitions of the topic that anybody has committed.
func (one *groupMember) committed() offsets {
	within, cancel := context.WithTimeout(context.Background(), offsetsTimeout)
	defer cancel()
	answer := offsets{Offsets: map[int32]int64{}}
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = one.group
	response, err := request.RequestWith(within, one.client)
	if err == nil {
		err = kerr.ErrorForCode(response.ErrorCode)
	}
	answer.Error = text(err)
	if err != nil {
		return answer
	}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if partition.ErrorCode == 0 && partition.Offset >= 0 {
				answer.Offsets[partition.Partition] = partition.Offset
			}
		}
	}
	return answer
}
