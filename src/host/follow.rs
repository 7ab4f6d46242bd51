//! Following a file that grows: reads resumed by offset. The one way in which logs are followed, near and far.

use bytes::Bytes;
use futures_util::StreamExt;

use super::{Host, HostError, HostPath};

/// A place in a file that grows. After a lost connection it goes on where it was.
#[derive(Debug)]
pub struct Follow<H> {
    host: H,
    path: HostPath,
    offset: u64,
}

impl<H: Host> Follow<H> {
    /// Follows a file from a byte offset.
    pub fn new(host: H, path: HostPath, offset: u64) -> Self {
        Follow { host, path, offset }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What was added since the last call, block by block, up to the present end; a file that is not there yet has
    /// nothing. Returns how many bytes there were. When it is dropped half-way, no byte is lost and none comes twice.
    pub async fn more(&mut self, mut take: impl FnMut(&Bytes)) -> Result<u64, HostError> {
        let before = self.offset;
        let mut blocks = match self.host.read(&self.path, self.offset).await {
            Err(HostError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            blocks => blocks?,
        };
        while let Some(block) = blocks.next().await {
            let block = block?;
            take(&block);
            self.offset += block.len() as u64;
        }
        Ok(self.offset - before)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::host::Local;

    async fn more(follow: &mut Follow<Local>) -> String {
        let mut bytes = Vec::new();
        follow.more(|block| bytes.extend_from_slice(block)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn every_byte_comes_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut follow = Follow::new(Local, path.clone(), 0);
        assert_eq!(more(&mut follow).await, "", "a file that is not there yet has nothing");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"one ").unwrap();
        assert_eq!(more(&mut follow).await, "one ");
        assert_eq!(more(&mut follow).await, "");
        let long = "x".repeat(300_000);
        file.write_all(long.as_bytes()).unwrap();
        assert_eq!(more(&mut follow).await, long);
        assert_eq!(follow.offset(), 300_004);
    }
}
