package main

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// deliveryTimeout is longer than any fault of the tests.
const deliveryTimeout = 60 * time.Second

// flushTimeout is what the last records get, which franz-go would wait for without end: it gives up
// no record that a broker may have stored.
const flushTimeout = 65 * time.Second

// sent answers one `PARTITION VALUE`; in any order, as batches end.
type sent struct {
	Value  string `json:"value"`
	Offset int64  `json:"offset"`
	Error  string `json:"error"`
}

// produce sends what each line names; idempotent, as franz-go is unless told otherwise.
func produce(bootstrap, topic string, in *bufio.Scanner, out *answers) error {
	options := append(common(bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2*time.Millisecond),
		kgo.RecordDeliveryTimeout(deliveryTimeout),
		kgo.ProduceRequestTimeout(5*time.Second),
	)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for in.Scan() {
		var partition int32
		var value string
		if _, err := fmt.Sscan(in.Text(), &partition, &value); err != nil {
			return fmt.Errorf("%q is no PARTITION VALUE: %w", in.Text(), err)
		}
		record := &kgo.Record{Partition: partition, Value: []byte(value)}
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			out.write(sent{Value: string(record.Value), Offset: record.Offset, Error: text(err)})
		})
	}
	within, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return client.Flush(within)
}
