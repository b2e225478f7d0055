//! A connection on which WebSocket messages in fragments are read with pauses.
//!
//! A message may come in any number of fragments (RFC 6455, section 5.4), and one without payload is six bytes: the library below puts
//! them together, and who reads messages sees none of it before the last one came. So they are counted where the bytes come in, from the
//! heads of the frames alone. Our ends send no fragments; a proxy that makes some of a message makes large ones, which cost nothing here.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::pace::{LITTLE, Pace};

/// A connection behind an upgrade whose other side is a client. Small fragments of messages have the pace of a link: so many at once, so
/// many a second, then it is not read for a moment.
#[derive(Debug)]
pub struct FewFragments<S> {
    stream: S,
    heads: Heads,
    pace: Pace,
    rests: Option<Pin<Box<Sleep>>>,
}

impl<S> FewFragments<S> {
    /// A connection of which `read` has been read already, from the first frame on.
    pub fn new(stream: S, read: &[u8]) -> Self {
        let mut fragments =
            FewFragments { stream, heads: Heads::default(), pace: Pace::new(Instant::now()), rests: None };
        fragments.count(read);
        fragments
    }

    fn count(&mut self, bytes: &[u8]) {
        let small = self.heads.small_fragments_in(bytes);
        if small > 0 {
            let until = self.pace.spend(small, 0, Instant::now());
            self.rests = until.map(|until| Box::pin(sleep_until(until)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FewFragments<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(rests) = &mut this.rests {
            ready!(rests.as_mut().poll(context));
            this.rests = None;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        this.count(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FewFragments<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Finds the heads of WebSocket frames in a stream of bytes; what is wrong with them is for others to say.
#[derive(Debug, Default)]
struct Heads {
    head: [u8; LONGEST_HEAD],
    /// Bytes of the head that came.
    have: usize,
    /// Bytes of payload that are still to come.
    payload: u64,
}

/// Two bytes, eight of length, four of mask.
const LONGEST_HEAD: usize = 14;
const FINAL: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;

impl Heads {
    /// Takes bytes and counts the frames that begin in them, are not a whole message and carry little.
    fn small_fragments_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut small = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.payload > 0 {
                // No more than there are.
                let passed = self.payload.min(bytes.len() as u64);
                self.payload -= passed;
                bytes = &bytes[passed as usize..];
                continue;
            }
            self.head[self.have] = *first;
            self.have += 1;
            bytes = rest;
            if let Some(payload) = self.whole() {
                let is_fragment = self.head[0] & FINAL == 0 || self.head[0] & OPCODE == 0;
                small += u64::from(is_fragment && payload < LITTLE);
                (self.have, self.payload) = (0, payload);
            }
        }
        small
    }

    /// The length of the payload, once the head is there.
    fn whole(&self) -> Option<u64> {
        let [_, second, length @ ..] = &self.head;
        let mask = if second & MASKED == 0 { 0 } else { 4 };
        let (extended, payload) = match second & !MASKED {
            126 => (2, u64::from(u16::from_be_bytes([length[0], length[1]]))),
            127 => {
                let [a, b, c, d, e, f, g, h, ..] = *length;
                (8, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            short => (0, u64::from(short)),
        };
        (self.have >= 2 && self.have == 2 + extended + mask).then_some(payload)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::pace::STEPS_PER_SECOND;

    /// A frame of a client's whose mask is zeros.
    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut frame = match payload {
            0..=125 => vec![first, MASKED | payload as u8],
            126..=65_535 => [&[first, MASKED | 126][..], &(payload as u16).to_be_bytes()].concat(),
            _ => [&[first, MASKED | 127][..], &(payload as u64).to_be_bytes()].concat(),
        };
        frame.extend([0; 4]);
        frame.resize(frame.len() + payload, 0x82);
        frame
    }

    #[test]
    fn small_fragments_are_found_however_the_bytes_are_cut() {
        let stream = [
            frame(0x82, 70_000),
            frame(0x89, 0),
            frame(0x02, 10),
            frame(0x00, 0),
            frame(0x8a, 125),
            frame(0x00, 300),
            frame(0x00, 5_000),
            frame(0x80, 1),
            frame(0x82, 40),
            // Of a client that does not mask.
            vec![0x00, 3, 1, 2, 3],
        ]
        .concat();
        for cut in [1, 2, 3, 7, 1_000, stream.len()] {
            let mut heads = Heads::default();
            let small: u64 = stream.chunks(cut).map(|part| heads.small_fragments_in(part)).sum();
            assert_eq!(small, 5, "cut by {cut}");
            assert_eq!((heads.have, heads.payload), (0, 0));
        }
        let mut heads = Heads::default();
        let endless = [&[0x00, MASKED | 127][..], &[0xff; 8], &[0; 4]].concat();
        assert_eq!((heads.small_fragments_in(&endless), heads.payload), (0, u64::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn fragments_of_nothing_are_read_at_the_pace_of_a_link_and_whole_messages_at_once() {
        let times = async |bytes: Vec<u8>| {
            let (mut client, server) = tokio::io::duplex(64 * 1024);
            let began = Instant::now();
            let writing = async move {
                client.write_all(&bytes).await.unwrap();
                bytes
            };
            let reading = async move {
                let (mut fragments, mut read) = (FewFragments::new(server, b""), Vec::new());
                fragments.read_to_end(&mut read).await.unwrap();
                read
            };
            let (written, read) = tokio::join!(writing, reading);
            assert!(written == read, "what is read is what came");
            began.elapsed()
        };
        let fragments = 3 * STEPS_PER_SECOND as usize;
        let took = times(frame(0x00, 0).repeat(fragments)).await;
        // A second's worth was there at the beginning.
        assert!(took >= Duration::from_millis(1_900) && took < Duration::from_secs(3), "{took:?}");
        assert!(times(frame(0x82, 8).repeat(fragments)).await < Duration::from_millis(100));
        assert!(times(frame(0x00, 5_000).repeat(1_000)).await < Duration::from_millis(100));
    }
}
