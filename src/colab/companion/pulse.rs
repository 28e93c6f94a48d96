//! A byte stream that counts the signs of life of its other end.
//!
//! A pong stands behind everything that was sent before it: behind a figure of 50 MB it takes longer than a dead connection may go
//! unnoticed. So bytes that come count, and so do bytes that leave once the system had no more room for them: room comes from the
//! other end's acknowledgement.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct Pulse<S> {
    inner: S,
    beats: u64,
    is_blocked: bool,
}

impl<S> Pulse<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            beats: 0,
            is_blocked: false,
        }
    }

    /// Grows with every sign of life.
    pub(super) fn beats(&self) -> u64 {
        self.beats
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pulse<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.beats += u64::from(buffer.filled().len() > before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pulse<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.inner).poll_write(cx, bytes) else {
            self.is_blocked = true;
            return Poll::Pending;
        };
        if written.is_ok() && std::mem::take(&mut self.is_blocked) {
            self.beats += 1;
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
