// The line protocol of PROTOCOL.md around redsync, over one server.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

var (
	errUnsupported = errors.New("unsupported")
	errUsage       = errors.New("usage: see PROTOCOL.md")
	errRefused     = errors.New("unlock was refused")
)

const ms = int64(time.Millisecond)

// now is the clock that other processes can read too; Go's own monotonic time starts with the process.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

type driver struct {
	redis    *redis.Client
	redsync  *redsync.Redsync
	sleepMs  int64 // 0: redsync's own random pause
	leaseMs  int64
	warmupMs int64
	held     map[string]*redsync.Mutex
}

func connect(url string) (*driver, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	if err := client.Ping(context.Background()).Err(); err != nil {
		return nil, err
	}
	return &driver{
		redis:    client,
		redsync:  redsync.New(goredis.NewPool(client)),
		leaseMs:  30_000,
		warmupMs: 200,
		held:     map[string]*redsync.Mutex{},
	}, nil
}

func (d *driver) mutex(key string, leaseMs int64) (*redsync.Mutex, error) {
	if leaseMs == 0 {
		return nil, errUnsupported // it can extend, but does not by itself
	}
	options := []redsync.Option{
		redsync.WithExpiry(time.Duration(leaseMs * ms)),
		redsync.WithTries(math.MaxInt32),
	}
	if d.sleepMs > 0 {
		options = append(options, redsync.WithRetryDelay(time.Duration(d.sleepMs*ms)))
	}
	return d.redsync.NewMutex(key, options...), nil
}

// taken: the library reached the server and was told that another holds the lock.
func taken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func (d *driver) lock(key string, leaseMs int64) error {
	m, err := d.mutex(key, leaseMs)
	if err != nil {
		return err
	}
	if err := m.Lock(); err != nil {
		return err
	}
	d.held[key] = m
	return nil
}

func (d *driver) try(key string, waitMs, leaseMs int64) (bool, error) {
	m, err := d.mutex(key, leaseMs)
	if err != nil {
		return false, err
	}
	if waitMs == 0 {
		err = m.TryLock()
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(waitMs*ms))
		defer cancel()
		err = m.LockContext(ctx)
	}
	if err == nil {
		d.held[key] = m
		return true, nil
	}
	if taken(err) || errors.Is(err, redsync.ErrFailed) {
		return false, nil
	}
	return false, err
}

func (d *driver) unlock(key string) (bool, error) {
	m := d.held[key]
	delete(d.held, key)
	if m == nil {
		m = d.redsync.NewMutex(key)
	}
	return released(m)
}

func released(m *redsync.Mutex) (bool, error) {
	ok, err := m.Unlock()
	if taken(err) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return false, nil
	}
	return ok, err
}

func releaseOrFail(m *redsync.Mutex) error {
	ok, err := released(m)
	if err == nil && !ok {
		err = errRefused
	}
	return err
}

func cycle(m *redsync.Mutex) error {
	if err := m.Lock(); err != nil {
		return err
	}
	return releaseOrFail(m)
}

func (d *driver) count(key, counter string, n, leaseMs int64) (string, error) {
	var longest int64
	ctx := context.Background()
	for range n {
		called := now()
		if err := d.lock(key, leaseMs); err != nil {
			return "", err
		}
		longest = max(longest, now()-called)
		before, err := d.redis.Get(ctx, counter).Int64()
		if err != nil && err != redis.Nil {
			return "", err
		}
		if err := d.redis.Set(ctx, counter, before+1, 0).Err(); err != nil {
			return "", err
		}
		if ok, err := d.unlock(key); err != nil || !ok {
			return "", errors.Join(err, errRefused)
		}
	}
	return fmt.Sprintf("ok %d %d", n, longest/1000), nil
}

func (d *driver) bench(key string, n int64) (string, error) {
	m, err := d.mutex(key, d.leaseMs)
	if err != nil {
		return "", err
	}
	for end := now() + d.warmupMs*ms; now() < end; {
		if err := cycle(m); err != nil {
			return "", err
		}
	}
	took := make([]int64, n)
	start := now()
	before := start
	for i := range took {
		if err := cycle(m); err != nil {
			return "", err
		}
		after := now()
		took[i] = after - before
		before = after
	}
	slices.Sort(took)
	return fmt.Sprintf("ok %d %d %d", took[n/2], took[int64(float64(n)*0.99)], before-start), nil
}

func (d *driver) benchcs(key string, seconds, csUs int64, file string, start int64) (string, error) {
	m, err := d.mutex(key, d.leaseMs)
	if err != nil {
		return "", err
	}
	if start == 0 {
		start = now() + d.warmupMs*ms
	}
	end := start + seconds*1000*ms
	var spans [][3]int64
	var longest int64
	for called := now(); called < end; called = now() {
		if err := m.Lock(); err != nil {
			return "", err
		}
		acquired := now()
		released := acquired
		for released < acquired+csUs*1000 {
			released = now()
		}
		if err := releaseOrFail(m); err != nil {
			return "", err
		}
		if acquired >= start {
			longest = max(longest, acquired-called)
			spans = append(spans, [3]int64{acquired, released, called})
		}
	}
	var text strings.Builder
	for _, s := range spans {
		fmt.Fprintf(&text, "%d %d %d\n", s[0], s[1], s[2])
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("ok %d %d", len(spans), longest/1000), nil
}

func (d *driver) threads(key string, threads, seconds int64) (string, error) {
	start := now() + d.warmupMs*ms
	end := start + seconds*1000*ms
	counts := make([]int64, threads)
	longest := make([]int64, threads)
	failures := make([]error, threads)
	var all sync.WaitGroup
	for i := range counts {
		m, err := d.mutex(key, d.leaseMs)
		if err != nil {
			return "", err
		}
		all.Go(func() {
			for called := now(); called < end; called = now() {
				if failures[i] = m.Lock(); failures[i] != nil {
					return
				}
				acquired := now()
				if failures[i] = releaseOrFail(m); failures[i] != nil {
					return
				}
				if acquired >= start {
					counts[i]++
					longest[i] = max(longest[i], acquired-called)
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	var total int64
	for _, n := range counts {
		total += n
	}
	shares := strings.Trim(fmt.Sprint(counts), "[]")
	return fmt.Sprintf("ok %d %d %d %d %s", total, slices.Min(counts), slices.Max(counts), slices.Max(longest)/1000, shares), nil
}

func verdict(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

// text and number answer a usage error by panicking with it: caught in answer.
func text(args []string, at int) string {
	if at >= len(args) {
		panic(errUsage)
	}
	return args[at]
}

func number(args []string, at int) int64 {
	n, err := strconv.ParseInt(text(args, at), 10, 64)
	if err != nil {
		panic(errUsage)
	}
	return n
}

func (d *driver) run(name string, args []string) (string, error) {
	switch name {
	case "quit":
		return "ok", nil
	case "kind":
		if text(args, 0) != "lock" {
			return "", errUnsupported
		}
		return "ok", nil
	case "sleep":
		d.sleepMs = number(args, 0)
		return "ok", nil
	case "lease":
		d.leaseMs = number(args, 0)
		return "ok", nil
	case "warmup":
		d.warmupMs = number(args, 0)
		return "ok", nil
	case "lock":
		return "ok", d.lock(text(args, 0), number(args, 1))
	case "try":
		ok, err := d.try(text(args, 0), number(args, 1), number(args, 2))
		return verdict(ok, "ok", "no"), err
	case "unlock":
		ok, err := d.unlock(text(args, 0))
		return verdict(ok, "ok", "refused"), err
	case "wait":
		err := d.lock(text(args, 0), number(args, 1))
		return fmt.Sprint("ok ", now()), err
	case "release":
		called := now()
		ok, err := d.unlock(text(args, 0))
		return fmt.Sprint(verdict(ok, "ok ", "refused "), called), err
	case "hold":
		holdMs := number(args, 2)
		if err := d.lock(text(args, 0), number(args, 1)); err != nil {
			return "", err
		}
		acquired := now()
		time.Sleep(time.Duration(holdMs * ms))
		called := now()
		ok, err := d.unlock(text(args, 0))
		return fmt.Sprint(verdict(ok, "ok ", "refused "), acquired, " ", called), err
	case "count":
		return d.count(text(args, 0), text(args, 1), number(args, 2), number(args, 3))
	case "value":
		m := d.held[text(args, 0)]
		if m == nil {
			return "no", nil
		}
		return "ok " + m.Value(), nil
	case "extend":
		m := d.held[text(args, 0)]
		if m == nil {
			m = d.redsync.NewMutex(text(args, 0))
		}
		ok, err := m.Extend()
		if taken(err) || errors.Is(err, redsync.ErrExtendFailed) {
			ok, err = false, nil
		}
		return verdict(ok, "ok", "refused"), err
	case "bench":
		return d.bench(text(args, 0), number(args, 1))
	case "benchcs":
		var start int64
		if len(args) > 4 {
			start = number(args, 4)
		}
		return d.benchcs(text(args, 0), number(args, 1), number(args, 2), text(args, 3), start)
	case "threads":
		return d.threads(text(args, 0), number(args, 1), number(args, 2))
	case "holds", "locked", "force", "watchdog", "owner", "persist", "limit", "tries", "islocking":
		return "", errUnsupported
	default:
		return "", errors.New("unknown command " + name)
	}
}

func failure(err error) string {
	return "error " + strings.Join(strings.Fields(err.Error()), " ")
}

func (d *driver) answer(line string) (answer string) {
	defer func() {
		if p := recover(); p != nil {
			answer = failure(fmt.Errorf("%v", p))
		}
	}()
	words := strings.Split(line, " ")
	answer, err := d.run(words[0], words[1:])
	if errors.Is(err, errUnsupported) {
		return "unsupported"
	}
	if err != nil {
		return failure(err)
	}
	return answer
}

func main() {
	if len(os.Args) != 2 {
		fmt.Println(failure(errors.New("usage: driver REDIS-URL")))
		os.Exit(1)
	}
	d, err := connect(os.Args[1])
	if err != nil {
		fmt.Println(failure(err))
		os.Exit(1)
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(d.answer(in.Text()))
		if in.Text() == "quit" {
			break
		}
	}
}
