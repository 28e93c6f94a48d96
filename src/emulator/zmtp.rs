//! The client side of ZMTP 3.0 (<https://rfc.zeromq.org/spec/23/>), NULL mechanism: just enough to listen to a kernel.
//!
//! Written out because the emulator must notice at once when a kernel is gone: the connection's end *is* the news, and nothing
//! reconnects behind our back. Invariant: no message is dropped; a reader that falls behind makes the sender wait.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a connected socket receives.
pub(super) struct Reader(BufReader<OwnedReadHalf>);

/// Where a connected socket sends to.
pub(super) struct Writer(OwnedWriteHalf);

/// Connects a socket of this type (`DEALER`, `SUB`) and shakes hands.
pub(super) async fn connect(address: &str, socket_type: &str) -> io::Result<(Reader, Writer)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (
        Reader(BufReader::with_capacity(1 << 18, read)),
        Writer(write),
    );

    writer.0.write_all(&greeting()).await?;
    let mut theirs = [0; 64];
    reader.0.read_exact(&mut theirs).await?;
    if theirs[0] != 0xFF || theirs[9] & 1 != 1 || theirs[10] < 3 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a ZMTP 3 peer",
        ));
    }
    writer.0.write_all(&ready(socket_type)).await?;
    let (flags, body) = reader.frame().await?;
    if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer is not ready",
        ));
    }
    Ok((reader, writer))
}

impl Reader {
    /// The next message. Not to be cancelled half-way: a task of its own calls it.
    pub async fn recv(&mut self) -> io::Result<Vec<Bytes>> {
        let mut message = Vec::new();
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                continue;
            }
            message.push(body);
            if flags & MORE == 0 {
                return Ok(message);
            }
        }
    }

    async fn frame(&mut self) -> io::Result<(u8, Bytes)> {
        let flags = self.0.read_u8().await?;
        let length = if flags & LONG != 0 {
            self.0.read_u64().await?
        } else {
            u64::from(self.0.read_u8().await?)
        };
        let mut body = Vec::new();
        // Grows with what arrives, not with what was announced.
        let read = (&mut self.0).take(length).read_to_end(&mut body).await?;
        if read as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((flags, body.into()))
    }
}

impl Writer {
    /// Sends one message.
    pub async fn send(&mut self, frames: &[Bytes]) -> io::Result<()> {
        let mut out = BytesMut::new();
        for (at, frame) in frames.iter().enumerate() {
            let more = if at + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut out, more, frame);
        }
        self.0.write_all(&out).await
    }
}

fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(socket_type: &str) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_slice(b"\x05READY\x0bSocket-Type");
    // The names of socket types are a few letters long.
    body.put_u32(u32::try_from(socket_type.len()).unwrap_or(0));
    body.put_slice(socket_type.as_bytes());
    let mut out = BytesMut::new();
    put_frame(&mut out, COMMAND, &body);
    out
}

fn put_frame(out: &mut BytesMut, flags: u8, body: &[u8]) {
    if let Ok(short) = u8::try_from(body.len()) {
        out.put_slice(&[flags, short]);
    } else {
        out.put_u8(flags | LONG);
        out.put_u64(body.len() as u64);
    }
    out.put_slice(body);
}
