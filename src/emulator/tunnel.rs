//! A WebSocket between a client and a runtime's server, and what the `companion` quirk does to it.
//!
//! Without a fault bytes are copied as they are, so that everything passes that either end may say: protocols, pings, close
//! codes, frames of any size. With one, the frames from the server are taken apart (RFC 6455 §5.2) to count iopub messages.
//! Invariants: a buffer's worth of bytes, or one message where they are counted, is held and no more; an end that does not
//! read holds the other one back; the end of either is the end of both.

use std::convert::Infallible;
use std::future::pending;
use std::io;

use serde::Deserialize;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf,
};

use super::counters::Counters;
use super::quirks::Companion;

const BUFFER: usize = 1 << 16;

/// The largest frame that is counted: more than any server sends.
const MAX_FRAME: u64 = 1 << 30;

const FINAL: u8 = 0x80;
const OPCODE: u8 = 0x0F;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CONTROL: u8 = 8;

/// Passes everything between both ends until one of them ends.
pub(super) async fn run<C, S>(
    mut client: C,
    mut server: S,
    companion: Companion,
    counters: &Counters,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    if matches!(companion, Companion::On | Companion::Blocked) {
        let (mut from_client, mut to_client) = tokio::io::split(&mut client);
        let (mut from_server, mut to_server) = tokio::io::split(&mut server);
        return tokio::select! {
            end = copy(&mut from_client, &mut to_server) => end,
            end = copy(&mut from_server, &mut to_client) => end,
        };
    }
    let (mut from_client, to_client) = tokio::io::split(&mut client);
    let (from_server, mut to_server) = tokio::io::split(&mut server);
    let mut down = Down {
        from_server: BufReader::with_capacity(BUFFER, from_server),
        to_client,
        message: Vec::new(),
        opcode: 0,
        passed: 0,
    };
    let fault = tokio::select! {
        end = copy(&mut from_client, &mut to_server) => return end,
        fault = down.until_fault(companion, counters) => fault?,
    };
    match fault {
        Fault::Cut => {
            counters.cut.add();
            Ok(())
        }
        Fault::Stall => {
            counters.stalled.add();
            pending::<Infallible>().await;
            Ok(())
        }
    }
}

async fn copy<R, W>(from: &mut R, to: &mut W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// What ends the passing of messages.
enum Fault {
    Cut,
    Stall,
}

/// The way from the server to the client, frame by frame.
struct Down<C, S> {
    from_server: BufReader<ReadHalf<S>>,
    to_client: WriteHalf<C>,
    /// The payload of the message that is being read.
    message: Vec<u8>,
    opcode: u8,
    /// How many iopub messages have passed.
    passed: u64,
}

impl<C: AsyncWrite, S: AsyncRead> Down<C, S> {
    async fn until_fault(
        &mut self,
        companion: Companion,
        counters: &Counters,
    ) -> io::Result<Fault> {
        let mut frames = Vec::new();
        loop {
            match companion {
                Companion::Cut(limit) if self.passed >= limit => return Ok(Fault::Cut),
                Companion::Stall(limit) if self.passed >= limit => return Ok(Fault::Stall),
                _ => {}
            }
            let start = frames.len();
            let flags = self.read_frame(&mut frames).await?;
            // A control frame may stand between the frames of a message.
            if flags & OPCODE >= CONTROL {
                self.to_client.write_all(&frames[start..]).await?;
                self.to_client.flush().await?;
                frames.truncate(start);
                continue;
            }
            if flags & FINAL == 0 {
                continue;
            }
            let counted = is_iopub(self.opcode, &self.message);
            self.message.clear();
            match companion {
                Companion::Swallow(limit) if counted && self.passed >= limit => {
                    counters.swallowed.add();
                }
                _ => {
                    self.to_client.write_all(&frames).await?;
                    self.to_client.flush().await?;
                    self.passed += u64::from(counted);
                }
            }
            frames.clear();
            // A large message is rare; its memory is not kept.
            frames.shrink_to(BUFFER);
            self.message.shrink_to(BUFFER);
        }
    }

    /// Adds a frame as it came to `frames`, and its payload to the message; its first byte.
    async fn read_frame(&mut self, frames: &mut Vec<u8>) -> io::Result<u8> {
        let mut head = [0; 2];
        self.from_server.read_exact(&mut head).await?;
        frames.extend(head);
        // RFC 6455 §5.1: a server does not mask.
        let length = match head[1] {
            126 => {
                let length = self.from_server.read_u16().await?;
                frames.extend(length.to_be_bytes());
                u64::from(length)
            }
            127 => {
                let length = self.from_server.read_u64().await?;
                frames.extend(length.to_be_bytes());
                length
            }
            short => u64::from(short),
        };
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
        }
        let start = frames.len();
        let mut payload = (&mut self.from_server).take(length);
        let read = payload.read_to_end(frames).await?;
        if read as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head[0] & OPCODE < CONTROL {
            if head[0] & OPCODE != 0 {
                self.opcode = head[0] & OPCODE;
            }
            self.message.extend_from_slice(&frames[start..]);
        }
        Ok(head[0])
    }
}

/// Whether a message is of the kernel's iopub channel, in either protocol.
fn is_iopub(opcode: u8, message: &[u8]) -> bool {
    match opcode {
        TEXT => json_is_iopub(message),
        BINARY => {
            v1_channel(message).map_or_else(|| legacy_is_iopub(message), |name| name == b"iopub")
        }
        _ => false,
    }
}

fn json_is_iopub(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        channel: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Message>(text).is_ok_and(|message| message.channel == "iopub")
}

/// The first part of `v1.kernel.websocket.jupyter.org`: a count and offsets in 64 bits, little-endian, then the parts.
fn v1_channel(message: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = message.get(8 * at..8 * at + 8)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let (count, start, end) = (word(0)?, word(1)?, word(2)?);
    let name = message.get(start..end)?;
    // What the default protocol's head gives, read like this, does not hold together.
    (start == count.checked_add(1)?.checked_mul(8)?).then_some(name)
}

/// The default protocol with buffers: a count and offsets in 32 bits, big-endian, then JSON and the buffers.
fn legacy_is_iopub(message: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = message.get(4 * at..4 * at + 4)?;
        usize::try_from(u32::from_be_bytes(bytes.try_into().ok()?)).ok()
    };
    let text = || {
        let start = word(1)?;
        let end = if word(0)? > 1 {
            word(2)?
        } else {
            message.len()
        };
        message.get(start..end)
    };
    text().is_some_and(json_is_iopub)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(channel: &str) -> Vec<u8> {
        let parts: [&[u8]; 5] = [channel.as_bytes(), b"{}", b"{}", b"{}", b"{}"];
        let mut offsets = vec![8 * 7];
        for part in parts {
            offsets.push(offsets[offsets.len() - 1] + part.len() as u64);
        }
        let mut message = (offsets.len() as u64).to_le_bytes().to_vec();
        message.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        message.extend(parts.concat());
        message
    }

    fn legacy(text: &str) -> Vec<u8> {
        let (start, end) = (12, 12 + u32::try_from(text.len()).unwrap());
        let head = [2, start, end].map(u32::to_be_bytes).concat();
        [&head[..], text.as_bytes(), b"buffer"].concat()
    }

    #[test]
    fn iopub_is_known_in_every_framing() {
        let iopub = r#"{"content": {"channel": "shell"}, "channel": "iopub"}"#;
        let shell = r#"{"content": {"channel": "iopub"}, "channel": "shell"}"#;
        assert!(is_iopub(TEXT, iopub.as_bytes()));
        assert!(!is_iopub(TEXT, shell.as_bytes()));
        assert!(is_iopub(BINARY, &legacy(iopub)));
        assert!(!is_iopub(BINARY, &legacy(shell)));
        assert!(is_iopub(BINARY, &v1("iopub")));
        assert!(!is_iopub(BINARY, &v1("shell")));
        for garbage in [&b""[..], b"{", &[0xFF; 40], &[0; 40]] {
            assert!(!is_iopub(TEXT, garbage) && !is_iopub(BINARY, garbage));
        }
    }

    #[tokio::test]
    async fn a_message_in_pieces_with_a_ping_between_is_one_message() {
        let text = r#"{"channel": "iopub"}"#.as_bytes();
        let mut sent = Vec::new();
        for _ in 0..2 {
            sent.extend([TEXT, 5]);
            sent.extend(&text[..5]);
            sent.extend([FINAL | 9, 1, b'p']);
            sent.extend([FINAL, u8::try_from(text.len() - 5).unwrap()]);
            sent.extend(&text[5..]);
        }
        sent.extend([FINAL | TEXT, 2, b'{', b'}']);
        let counters = Counters::default();
        let (client, mut far_client) = tokio::io::duplex(1000);
        let (server, mut far_server) = tokio::io::duplex(1000);
        let feeding = async {
            far_server.write_all(&sent).await.unwrap();
            drop(far_server);
            let mut seen = Vec::new();
            far_client.read_to_end(&mut seen).await.unwrap();
            seen
        };
        let tunnel = run(client, server, Companion::Swallow(1), &counters);
        let (_, seen) = tokio::join!(tunnel, feeding);
        assert_eq!(counters.counts().swallowed, 1);
        // The ping of the second message passed; the message itself did not.
        let half = (sent.len() - 4) / 2;
        let pings = seen.iter().filter(|byte| **byte == FINAL | 9).count();
        assert_eq!((pings, seen.len()), (2, half + 3 + 4));
    }
}
