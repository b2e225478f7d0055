//! Moves raw bytes both ways between two streams without looking at them, until both directions have ended.
//!
//! Each direction starts with a 4 KiB buffer, grows to 64 KiB once it has moved enough, and shrinks again when idle, so
//! that ten thousand idle sessions stay cheap and a busy one stays fast. A direction that ends is passed on as a half
//! close; the other may then go on for as long as it makes progress within the linger time. One watchdog looks at the
//! connection as a whole: progress in either direction counts, since a one-way stream is a healthy one.
//!
//! A direction that never has to wait lets others have their turn after 256 KiB: what a peer floods its connection with is not to hold
//! up the connections that the same thread serves.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep_until},
};

/// Bytes of a direction's buffer at first and when idle.
pub const SMALL_BUFFER: usize = 4 * 1024;
/// Most bytes of a direction's buffer.
pub const LARGE_BUFFER: usize = 64 * 1024;
/// Bytes that a direction moves at most before it is another connection's turn: a fraction of a millisecond, with TLS.
pub const TURN_BYTES: usize = 256 * 1024;
/// A direction has to move this many bytes before its buffer grows.
const GROW_AFTER: u64 = 128 * 1024;
/// A splice that stood still this long gives its large buffers back.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// How long a splice may stand still.
#[derive(Clone, Copy, Debug)]
pub struct SpliceLimits {
    /// No byte in either direction for this long ends the splice. Both ends ping well within it.
    pub idle: Duration,
    /// After one direction has ended: no progress in the other for this long ends the splice.
    pub linger: Duration,
}

impl Default for SpliceLimits {
    fn default() -> Self {
        SpliceLimits { idle: Duration::from_secs(120), linger: Duration::from_secs(30) }
    }
}

/// Why a splice ended.
#[derive(Debug)]
pub enum SpliceEnd {
    /// Both directions ended in order.
    Closed,
    /// Nothing moved for the idle time.
    Idle,
    /// One direction had ended and the other stood still for the linger time.
    Lingered,
    /// A stream failed.
    Failed(io::Error),
}

impl SpliceEnd {
    /// One word for the log.
    pub fn name(&self) -> &'static str {
        match self {
            SpliceEnd::Closed => "closed",
            SpliceEnd::Idle => "idle",
            SpliceEnd::Lingered => "half_closed",
            SpliceEnd::Failed(_) => "failed",
        }
    }
}

/// What a splice did.
#[derive(Debug)]
pub struct Spliced {
    /// Bytes moved from the first stream to the second.
    pub forward: u64,
    /// Bytes moved from the second stream to the first.
    pub backward: u64,
    /// Why it ended.
    pub end: SpliceEnd,
}

/// What splices add up, for metrics. Clones share the figures.
#[derive(Clone, Debug, Default)]
pub struct SpliceMeter {
    /// Bytes moved from the first stream to the second.
    pub forward: Counter,
    /// Bytes moved from the second stream to the first.
    pub backward: Counter,
    /// Bytes of the buffers that exist now.
    pub buffers: Gauge,
}

/// [`splice_metered`] whose figures nobody asks for.
pub async fn splice<A, B>(first: &mut A, second: &mut B, limits: SpliceLimits) -> Spliced
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    splice_metered(first, second, limits, &SpliceMeter::default()).await
}

/// Joins two streams until both directions have ended, one fails, or neither moves for the time allowed. Dropping the
/// future (a drain that ran out of patience) leaves both streams as they are; dropping those closes them.
pub async fn splice_metered<A, B>(
    first: &mut A,
    second: &mut B,
    limits: SpliceLimits,
    meter: &SpliceMeter,
) -> Spliced
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut forward = Direction::new(meter.forward.clone(), &meter.buffers);
    let mut backward = Direction::new(meter.backward.clone(), &meter.buffers);
    let mut last_progress = Instant::now();
    let mut half_closed = false;
    let mut watchdog = Box::pin(sleep_until(last_progress + limits.idle.min(SHRINK_AFTER)));
    let end = poll_fn(|context| {
        let moved_before = forward.moved + backward.moved;
        // Both directions are polled every time: a slow writer on one must never keep the other waiting.
        let forward_now = forward.poll(context, first, second);
        let backward_now = backward.poll(context, second, first);
        for now in [forward_now, backward_now] {
            if let Poll::Ready(Err(error)) = now {
                return Poll::Ready(SpliceEnd::Failed(error));
            }
        }
        if forward.done && backward.done {
            return Poll::Ready(SpliceEnd::Closed);
        }
        let newly_half_closed = !half_closed && (forward.done || backward.done);
        half_closed |= newly_half_closed;
        if forward.moved + backward.moved != moved_before || newly_half_closed {
            last_progress = Instant::now();
        }
        let allowed = if half_closed { limits.linger } else { limits.idle };
        if newly_half_closed {
            watchdog.as_mut().reset(last_progress + allowed.min(SHRINK_AFTER));
        }
        // The timer is set again only when it fires, not at every byte.
        while watchdog.as_mut().poll(context).is_ready() {
            let still = last_progress.elapsed();
            if still >= allowed {
                return Poll::Ready(if half_closed { SpliceEnd::Lingered } else { SpliceEnd::Idle });
            }
            if still >= SHRINK_AFTER {
                forward.shrink();
                backward.shrink();
            }
            watchdog.as_mut().reset(Instant::now() + (allowed - still).min(SHRINK_AFTER));
        }
        Poll::Pending
    })
    .await;
    Spliced { forward: forward.moved, backward: backward.moved, end }
}

/// One direction: a buffer between a reader and a writer.
struct Direction {
    buffer: Buffer,
    start: usize,
    end: usize,
    /// Whether the writer holds bytes that it may not have sent yet.
    unflushed: bool,
    read_ended: bool,
    done: bool,
    moved: u64,
    moved_in_all: Counter,
}

/// A buffer that is counted for as long as it exists.
struct Buffer {
    bytes: Box<[u8]>,
    counted: Gauge,
}

impl Buffer {
    fn new(length: usize, counted: &Gauge) -> Self {
        // Never more than `LARGE_BUFFER`.
        counted.inc_by(length as i64);
        Buffer { bytes: vec![0; length].into_boxed_slice(), counted: counted.clone() }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Another one of this length in its place.
    fn resize(&mut self, length: usize) {
        *self = Buffer::new(length, &self.counted);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.counted.dec_by(self.bytes.len() as i64);
    }
}

impl Direction {
    fn new(moved_in_all: Counter, buffers: &Gauge) -> Self {
        Direction {
            buffer: Buffer::new(SMALL_BUFFER, buffers),
            start: 0,
            end: 0,
            unflushed: false,
            read_ended: false,
            done: false,
            moved: 0,
            moved_in_all,
        }
    }

    /// Moves what can be moved now, a turn's worth at most. Ready once the end of the reader has been passed on to the writer.
    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        let mut turn = 0;
        loop {
            if turn >= TURN_BYTES {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.start == self.end && !self.read_ended {
                self.start = 0;
                self.end = 0;
                let mut target = ReadBuf::new(&mut self.buffer.bytes);
                match Pin::new(&mut *reader).poll_read(context, &mut target) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => {
                        // Nothing more to add for now: this is the moment to send what the writer holds back.
                        if self.unflushed {
                            ready!(Pin::new(&mut *writer).poll_flush(context))?;
                            self.unflushed = false;
                        }
                        return Poll::Pending;
                    }
                }
                self.end = target.filled().len();
                self.read_ended = self.end == 0;
            }
            while self.start < self.end {
                let written = ready!(
                    Pin::new(&mut *writer).poll_write(context, &self.buffer.bytes[self.start..self.end])
                )?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.start += written;
                turn += written;
                self.moved += written as u64;
                self.moved_in_all.inc_by(written as u64);
                self.unflushed = true;
            }
            if self.read_ended {
                ready!(Pin::new(&mut *writer).poll_shutdown(context))?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            self.grow();
        }
    }

    /// Doubles the buffer when it was filled whole and the direction has proved to be a busy one.
    fn grow(&mut self) {
        let length = self.buffer.len();
        if self.end == length && length < LARGE_BUFFER && self.moved >= GROW_AFTER {
            self.buffer.resize(length * 2);
            self.start = 0;
            self.end = 0;
        }
    }

    /// Gives a large buffer back while nothing is in it.
    fn shrink(&mut self) {
        if self.start == self.end && self.buffer.len() > SMALL_BUFFER {
            self.buffer.resize(SMALL_BUFFER);
            self.start = 0;
            self.end = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        task::{Wake, Waker},
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn pattern(length: usize, seed: u32) -> Vec<u8> {
        (0..length as u32).map(|index| (index.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes()[1]).collect()
    }

    #[tokio::test]
    async fn both_directions_arrive_whole_and_the_buffers_grow() {
        let (client, mut near) = duplex(3000);
        let (mut far, hub) = duplex(50_000);
        let meter = SpliceMeter::default();
        let metered = meter.clone();
        let splice = tokio::spawn(async move {
            splice_metered(&mut near, &mut far, SpliceLimits::default(), &metered).await
        });
        let up = pattern(1_500_000, 1);
        let down = pattern(1_100_000, 2);
        let talk = |stream: tokio::io::DuplexStream, send: Vec<u8>| async move {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let write = async move {
                writer.write_all(&send).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut received = Vec::new();
            let (_, read) = tokio::join!(write, reader.read_to_end(&mut received));
            read.unwrap();
            received
        };
        let (got_down, got_up) = tokio::join!(talk(client, up.clone()), talk(hub, down.clone()));
        assert!(got_up == up && got_down == down);
        let spliced = splice.await.unwrap();
        assert_eq!((spliced.forward, spliced.backward), (up.len() as u64, down.len() as u64));
        assert!(matches!(spliced.end, SpliceEnd::Closed));
        assert_eq!((meter.forward.get(), meter.backward.get()), (up.len() as u64, down.len() as u64));
        assert_eq!(meter.buffers.get(), 0);
    }

    #[tokio::test]
    async fn after_a_half_close_the_other_direction_goes_on() {
        let (mut client, mut near) = duplex(64);
        let (mut far, mut hub) = duplex(64);
        let splice = tokio::spawn(async move { splice(&mut near, &mut far, SpliceLimits::default()).await });
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = Vec::new();
        hub.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question");
        for _ in 0..20 {
            hub.write_all(&[7; 100]).await.unwrap();
            let mut part = [0; 100];
            client.read_exact(&mut part).await.unwrap();
            assert_eq!(part, [7; 100]);
        }
        drop(hub);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        assert!(matches!(splice.await.unwrap().end, SpliceEnd::Closed));
    }

    #[tokio::test]
    async fn a_splice_that_stands_still_is_ended() {
        let limits = SpliceLimits { idle: Duration::from_millis(30), linger: Duration::from_secs(600) };
        let (_client, mut near) = duplex(64);
        let (mut far, _hub) = duplex(64);
        assert!(matches!(splice(&mut near, &mut far, limits).await.end, SpliceEnd::Idle));

        let limits = SpliceLimits { idle: Duration::from_secs(600), linger: Duration::from_millis(30) };
        let (mut client, mut near) = duplex(64);
        let (mut far, _hub) = duplex(64);
        client.shutdown().await.unwrap();
        assert!(matches!(splice(&mut near, &mut far, limits).await.end, SpliceEnd::Lingered));
    }

    /// Whether it was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_direction_that_never_waits_lets_others_have_their_turn_and_goes_on_at_once() {
        let (mut flood, mut taken) = (tokio::io::repeat(7), tokio::io::sink());
        let mut direction = Direction::new(Counter::default(), &Gauge::default());
        for turn in 1..=3 {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let moved = direction.poll(&mut Context::from_waker(&waker), &mut flood, &mut taken);
            assert!(moved.is_pending());
            assert!(woken.0.load(Ordering::Relaxed), "it is its turn again without an event");
            let most = turn * (TURN_BYTES + LARGE_BUFFER) as u64;
            assert!((turn * TURN_BYTES as u64..most).contains(&direction.moved), "{}", direction.moved);
        }
    }

    #[test]
    fn a_buffer_grows_to_its_limit_and_shrinks_back() {
        let buffers = Gauge::default();
        let mut direction = Direction::new(Counter::default(), &buffers);
        direction.moved = GROW_AFTER;
        for _ in 0..10 {
            direction.start = direction.buffer.len();
            direction.end = direction.buffer.len();
            direction.grow();
        }
        assert_eq!(direction.buffer.len(), LARGE_BUFFER);
        direction.end = direction.start;
        direction.shrink();
        assert_eq!(direction.buffer.len(), SMALL_BUFFER);
        direction.end = SMALL_BUFFER;
        direction.buffer.resize(LARGE_BUFFER);
        direction.shrink();
        assert_eq!(direction.buffer.len(), LARGE_BUFFER, "a buffer that holds bytes is kept");
        assert_eq!(buffers.get(), LARGE_BUFFER as i64);
        drop(direction);
        assert_eq!(buffers.get(), 0, "what is gone is not counted");
    }
}
