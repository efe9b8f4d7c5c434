// Command franz is a franz-go client that its parent leads by lines, as tests/support/line_client.py
// describes them: a producer, or a member of a group.
//
//	franz produce BOOTSTRAP TOPIC
//	franz member BOOTSTRAP TOPIC GROUP
//
// The end of its input ends it: the producer flushes, the member leaves its group. Exit status 2: it
// could not start.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What both kinds of client have: they look for moved leaders and coordinators soon, as a client
// of a test has no minute to lose.
func common(bootstrap string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.DialTimeout(5 * time.Second),
		kgo.RequestTimeoutOverhead(5 * time.Second),
	}
}

// answers writes one JSON object a line; callbacks of the client write beside the main goroutine.
type answers struct {
	mutex sync.Mutex
	out   *json.Encoder
}

func (a *answers) write(answer any) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if err := a.out.Encode(answer); err != nil {
		// The parent is gone.
		os.Exit(1)
	}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(2)
	}
}

func run(arguments []string) error {
	in := bufio.NewScanner(os.Stdin)
	out := &answers{out: json.NewEncoder(os.Stdout)}
	switch {
	case len(arguments) == 3 && arguments[0] == "produce":
		return produce(arguments[1], arguments[2], in, out)
	case len(arguments) == 4 && arguments[0] == "member":
		return member(arguments[1], arguments[2], arguments[3], in, out)
	}
	return errors.New("usage: franz produce BOOTSTRAP TOPIC | member BOOTSTRAP TOPIC GROUP")
}

// text is an error as answers tell it; empty where there is none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
