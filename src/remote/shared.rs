//! A host that several hold at once.

use std::sync::Arc;

use bytes::Bytes;

use crate::host::{Address, BoxedIo, ByteStream, Host, HostError, HostPath, Mode, Output, Words};

/// One connection, in several hands.
#[derive(Debug)]
pub struct Shared<H>(Arc<H>);

impl<H> Clone for Shared<H> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<H> Shared<H> {
    /// Of a host.
    pub fn new(host: H) -> Self {
        Shared(Arc::new(host))
    }
}

impl<H: Host> Host for Shared<H> {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        self.0.run(words, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        self.0.put(path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        self.0.read(path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        self.0.connect(to).await
    }
}
