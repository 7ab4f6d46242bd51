//! The models that an endpoint lists. A list is optional: what keeps it from being read is told, and no more.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use serde::Deserialize;

use super::LoadError;
use super::http::{Decoder, Piece};
use super::requests;
use super::url::Endpoint;
use super::wire::Dialer;

/// How long the list is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// A list is not longer than this.
const SIZE_LIMIT: usize = 4 << 20;

/// Why there is no list of models.
#[derive(Debug, thiserror::Error)]
pub enum NoList {
    /// Nobody answers at that address.
    #[error("no connection: {0}")]
    NotConnected(String),
    /// No request can be made of it.
    #[error(transparent)]
    Request(#[from] LoadError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// It took too long.
    #[error("no answer within {} s", LIMIT.as_secs())]
    TooSlow,
    /// Another status than 200.
    #[error("/v1/models answered with status {0}")]
    Status(u16),
    /// The answer is no such list.
    #[error("the answer of /v1/models is no list of models: {0}")]
    NotAList(String),
}

#[derive(Deserialize)]
struct List {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// The names of the models that `/v1/models` lists.
pub async fn list(endpoint: &Endpoint, headers: &[(String, String)]) -> Result<Vec<String>, NoList> {
    let body = tokio::time::timeout(LIMIT, get(endpoint, headers)).await.map_err(|_| NoList::TooSlow)??;
    let list: List = serde_json::from_slice(&body).map_err(|error| NoList::NotAList(error.to_string()))?;
    Ok(list.data.into_iter().map(|model| model.id).collect())
}

/// The body of a 200 answer.
async fn get(endpoint: &Endpoint, headers: &[(String, String)]) -> Result<Vec<u8>, NoList> {
    let request = requests::get(&endpoint.path("/v1/models"), endpoint, headers)?;
    match answer_to(endpoint, &request).await? {
        (200, body) => Ok(body),
        (status, _) => Err(NoList::Status(status)),
    }
}

/// Status and body of the answer to a request for something small.
pub(super) async fn answer_to(endpoint: &Endpoint, request: &[u8]) -> Result<(u16, Vec<u8>), NoList> {
    let opened = Dialer::new(endpoint).await?.open().await;
    let mut connection = opened.map_err(|error| NoList::NotConnected(error.words))?;
    if let Some(answered) = connection.ask_by_http2(request, SIZE_LIMIT).await {
        return Ok(answered?);
    }
    let mut decoder = Decoder::default();
    let (mut status, mut body, mut fault) = (None, Vec::new(), None);
    connection
        .ask(request, |bytes| {
            let Some(bytes) = bytes else {
                decoder.end();
                return ControlFlow::Break(());
            };
            let result = decoder.feed(bytes, |piece| {
                match piece {
                    Piece::Head(head) => status = Some(head.status),
                    Piece::Body(bytes) => body.extend_from_slice(bytes),
                }
                if body.len() > SIZE_LIMIT { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match result {
                Ok(ControlFlow::Continue(())) if !decoder.is_done() => ControlFlow::Continue(()),
                Ok(_) => ControlFlow::Break(()),
                Err(error) => {
                    fault = Some(error.to_string());
                    ControlFlow::Break(())
                }
            }
        })
        .await?;
    match (status, fault) {
        (_, Some(fault)) => Err(NoList::NotAList(fault)),
        (Some(status), None) if decoder.is_done() => Ok((status, body)),
        (Some(status), None) if status != 200 => Ok((status, body)),
        (Some(_), None) if body.len() > SIZE_LIMIT => {
            Err(NoList::NotAList(format!("it is longer than {SIZE_LIMIT} bytes")))
        }
        (Some(_) | None, None) => Err(NoList::NotAList("it ends before its end".to_owned())),
    }
}
