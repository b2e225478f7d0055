//! A stream of which somebody has read the beginning already: it is read once more, then the stream itself.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes that were read, and the stream behind them.
#[derive(Debug)]
pub(super) struct Replayed<S> {
    /// Empty, and without memory, once all of it was given.
    first: Vec<u8>,
    given: usize,
    stream: S,
}

impl<S> Replayed<S> {
    pub(super) fn new(first: Vec<u8>, stream: S) -> Self {
        Replayed { first, given: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let replayed = self.get_mut();
        if replayed.first.is_empty() {
            return Pin::new(&mut replayed.stream).poll_read(context, target);
        }
        let left = &replayed.first[replayed.given..];
        let count = left.len().min(target.remaining());
        target.put_slice(&left[..count]);
        replayed.given += count;
        if replayed.given == replayed.first.len() {
            replayed.first = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn the_beginning_is_read_before_the_rest_in_pieces_of_any_size() {
        for piece in [1, 2, 3, 5, 64] {
            let (near, mut far) = duplex(64);
            let mut replayed = Replayed::new(b"first ".to_vec(), near);
            far.write_all(b"and rest").await.unwrap();
            let mut all = Vec::new();
            while all.len() < 14 {
                let mut part = vec![0; piece];
                let count = replayed.read(&mut part).await.unwrap();
                all.extend_from_slice(&part[..count]);
            }
            assert_eq!(all, b"first and rest");
            replayed.write_all(b"back").await.unwrap();
            replayed.shutdown().await.unwrap();
            let mut back = Vec::new();
            far.read_to_end(&mut back).await.unwrap();
            assert_eq!(back, b"back");
        }
    }
}
