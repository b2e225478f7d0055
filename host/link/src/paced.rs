//! A connection that is not read for a moment where more small things come on it than it has earned.
//!
//! For what a library takes apart before anybody sees it: small fragments of WebSocket messages at the hub, small records of TLS at the
//! edge. They are counted in the bytes themselves, below that library, and have the pace of a link ([`STEPS_PER_SECOND`]).
//!
//! [`STEPS_PER_SECOND`]: crate::STEPS_PER_SECOND

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::pace::Pace;

/// Finds what is small in the bytes that come on a connection. What is wrong with them is for others to say.
pub trait Small {
    /// Takes the bytes that come next: the steps of what begins in them.
    fn steps_in(&mut self, bytes: &[u8]) -> u64;

    /// The steps that so many bytes earn that were written at once: what is written is answered.
    fn earned_by(written: usize) -> u64;
}

/// A connection with an account of the steps that come on it. Who has used them up is not read until time has brought what it owes;
/// writing goes on.
#[derive(Debug)]
pub struct Paced<S, F> {
    stream: S,
    finder: F,
    pace: Pace,
    earned: u64,
    rests: Option<Pin<Box<Sleep>>>,
}

impl<S, F: Small + Default> Paced<S, F> {
    /// A connection of which `read`, from its first byte on, has been read already.
    pub fn new(stream: S, read: &[u8]) -> Self {
        let (finder, pace) = (F::default(), Pace::new(Instant::now()));
        let mut paced = Paced { stream, finder, pace, earned: 0, rests: None };
        paced.count(read);
        paced
    }
}

impl<S, F: Small> Paced<S, F> {
    fn count(&mut self, bytes: &[u8]) {
        let steps = self.finder.steps_in(bytes);
        if steps > 0 {
            let until = self.pace.spend(steps, std::mem::take(&mut self.earned), Instant::now());
            self.rests = until.map(|until| Box::pin(sleep_until(until)));
        }
    }

    fn written(&mut self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(written)) = result {
            self.earned = self.earned.saturating_add(F::earned_by(*written));
        }
    }
}

impl<S: AsyncRead + Unpin, F: Small + Unpin> AsyncRead for Paced<S, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let paced = self.get_mut();
        if let Some(rests) = &mut paced.rests {
            ready!(rests.as_mut().poll(context));
            paced.rests = None;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut paced.stream).poll_read(context, buffer))?;
        paced.count(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, F: Small + Unpin> AsyncWrite for Paced<S, F> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let paced = self.get_mut();
        let result = Pin::new(&mut paced.stream).poll_write(context, bytes);
        paced.written(&result);
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let paced = self.get_mut();
        let result = Pin::new(&mut paced.stream).poll_write_vectored(context, slices);
        paced.written(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::pace::STEPS_PER_SECOND;

    /// Each zero is a step, and each byte that is written earns one.
    #[derive(Debug, Default)]
    struct Zeros;

    impl Small for Zeros {
        fn steps_in(&mut self, bytes: &[u8]) -> u64 {
            bytes.iter().filter(|byte| **byte == 0).count() as u64
        }

        fn earned_by(written: usize) -> u64 {
            written as u64
        }
    }

    /// How long these bytes take to come, once so many were written the other way.
    async fn time_of(bytes: Vec<u8>, written: usize) -> Duration {
        let (mut client, server) = duplex(1 << 20);
        let mut paced = Paced::<_, Zeros>::new(server, b"");
        paced.write_all(&vec![1; written]).await.unwrap();
        let began = Instant::now();
        let writing = async {
            client.write_all(&bytes).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut read = Vec::new();
        let ((), count) = tokio::join!(writing, paced.read_to_end(&mut read));
        count.unwrap();
        assert!(read == bytes, "what is read is what came");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn small_things_are_read_at_the_pace_of_a_link_and_all_else_at_once() {
        let steps = 3 * STEPS_PER_SECOND as usize;
        let took = time_of(vec![0; steps], 0).await;
        // A second's worth was there at the beginning.
        assert!(took >= Duration::from_millis(1_900) && took < Duration::from_secs(3), "{took:?}");
        assert!(time_of(vec![7; steps], 0).await < Duration::from_millis(100));
        assert!(time_of(vec![0; steps], steps).await < Duration::from_millis(100), "it was earned");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_before_counts() {
        let (mut client, server) = duplex(64);
        let mut paced = Paced::<_, Zeros>::new(server, &vec![0; 2 * STEPS_PER_SECOND as usize]);
        let began = Instant::now();
        client.write_all(b"a").await.unwrap();
        assert_eq!(paced.read_u8().await.unwrap(), b'a');
        assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    }
}
