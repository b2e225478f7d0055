//! A service with an engine that follows a script, and a client of a few lines.
#![allow(clippy::unwrap_used, dead_code)] // test support: a failure should fail the test; not every test uses all of it

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvasir_model::{TokenId, TokenizerError};
use kvasir_serve::api::{
    Chat, Engine, Finish, Generation, Held, Language, Limits, Logprobs, Piece, Refused, RenderError, Service,
    Settings, SwarmReport, SwarmWorker, TextRequest, Writer, generation, plain, serve,
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Nothing here takes a tenth of this: it is there so that a test that hangs ends.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens of prompt and text.
pub const CONTEXT: usize = 100;
/// The name that clients ask for.
pub const MODEL: &str = "atlas";
/// The first number of the script's tokens: those below are bytes, one of them control tokens.
const FIRST_WORD: u32 = 257;
/// A token that controls the model.
const CONTROL: u32 = 256;

/// How a text ends once its tokens are written.
#[derive(Clone, Copy, PartialEq)]
pub enum Ending {
    /// As models end.
    Stop,
    /// With an error.
    Fail,
    /// Without a word.
    Vanish,
    /// Not before the client goes away.
    Never,
}

/// Writes the same tokens for every request.
pub struct Scripted {
    words: Vec<Vec<u8>>,
    ending: Ending,
    seen: Mutex<Vec<TextRequest>>,
    refuse: Mutex<Option<Refused>>,
    cancelled: Arc<AtomicUsize>,
    open: Mutex<Vec<Writer>>,
}

impl Engine for Scripted {
    fn submit(&self, request: TextRequest) -> Result<Generation, Refused> {
        if let Some(refused) = self.refuse.lock().unwrap().clone() {
            return Err(refused);
        }
        let (writer, generation) = generation();
        for at in 0..self.words.len().min(request.max_tokens) {
            let token = TokenId(FIRST_WORD + at as u32);
            let logprobs = request.top_logprobs.map(|top| {
                let top = [(token, -0.5), (TokenId(0xe2), -1.5)].into_iter().take(top).collect();
                Logprobs { chosen: -0.5, top }
            });
            writer.piece(Piece { token, logprobs });
        }
        let full = self.words.len() >= request.max_tokens;
        self.seen.lock().unwrap().push(request);
        match self.ending {
            _ if full => writer.end(Finish::Length),
            Ending::Stop => writer.end(Finish::Stop),
            Ending::Fail => writer.fail("the experts of layer 3 failed"),
            Ending::Vanish => drop(writer),
            Ending::Never => {
                let cancelled = self.cancelled.clone();
                tokio::spawn(async move {
                    writer.unwanted().await;
                    cancelled.fetch_add(1, Ordering::SeqCst);
                });
            }
        }
        Ok(generation)
    }

    fn context_limit(&self) -> usize {
        CONTEXT
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn swarm(&self) -> SwarmReport {
        let worker = SwarmWorker {
            name: "0123456789ab".into(),
            state: "serving".into(),
            holds: vec![Held { layer: 1, experts: 16 }],
            credit_nanokvr: 7,
            ..SwarmWorker::default()
        };
        SwarmReport {
            model: MODEL.into(),
            layers: 4,
            experts_per_layer: 16,
            workers: vec![worker],
            ..SwarmReport::default()
        }
    }
}

/// A token for each byte, one that is no text, and the script's.
struct Bytes {
    singles: Vec<[u8; 1]>,
    words: Vec<Vec<u8>>,
}

impl Language for Bytes {
    fn encode(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, TokenizerError> {
        if text.len() > limit {
            return Err(TokenizerError::TooManyTokensInText { bytes: text.len(), limit });
        }
        Ok(text.bytes().map(|byte| TokenId(u32::from(byte))).collect())
    }

    fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        match token.0 {
            0..CONTROL => self.singles.get(token.0 as usize).map(|single| &single[..]),
            CONTROL => Some(b"<|end|>"),
            _ => self.words.get((token.0 - FIRST_WORD) as usize).map(Vec::as_slice),
        }
    }

    fn is_special(&self, token: TokenId) -> bool {
        token.0 == CONTROL
    }

    fn vocabulary(&self) -> usize {
        FIRST_WORD as usize + self.words.len()
    }

    fn render(&self, chat: &Chat) -> Result<String, RenderError> {
        let told = plain(&Chat { tools: Vec::new(), ..chat.clone() })?;
        Ok(format!("{told}|{}|{}", chat.tools.len(), Value::Object(chat.further.clone())))
    }
}

/// A running service.
pub struct Scene {
    pub address: SocketAddr,
    pub engine: Arc<Scripted>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

impl Scene {
    /// With default settings, and texts of these tokens.
    pub async fn start(words: &[&[u8]], ending: Ending) -> Scene {
        Scene::with(words, ending, Settings::default()).await
    }

    /// With limits of one's own.
    pub async fn within(words: &[&[u8]], ending: Ending, limits: Limits) -> Scene {
        Scene::with(words, ending, Settings { limits, ..Settings::default() }).await
    }

    pub async fn with(words: &[&[u8]], ending: Ending, settings: Settings) -> Scene {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let engine = Arc::new(Scripted {
            words: words.clone(),
            ending,
            seen: Mutex::default(),
            refuse: Mutex::default(),
            cancelled: Arc::default(),
            open: Mutex::default(),
        });
        let service = Service {
            engine: engine.clone(),
            language: Arc::new(Bytes { singles: (0..=255).map(|byte| [byte]).collect(), words }),
            settings: Settings { names: vec![MODEL.into(), "kvasir/atlas".into()], ..settings },
            registry: Registry::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, service, async {
            let _ = stopped.await;
        }));
        Scene { address, engine, stop: Some(stop), served }
    }

    /// Tells the service to stop; does not wait.
    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the service has ended.
    pub async fn ended(self) {
        patiently(self.served).await.unwrap();
    }

    pub fn refuse(&self, refused: Option<Refused>) {
        *self.engine.refuse.lock().unwrap() = refused;
    }

    pub fn seen(&self) -> Vec<TextRequest> {
        self.engine.seen.lock().unwrap().clone()
    }

    /// Waits until so many texts were cancelled.
    pub async fn cancelled(&self, texts: usize) {
        self.until(|| self.engine.cancelled.load(Ordering::SeqCst) == texts).await;
    }

    /// Waits until so many texts were begun.
    pub async fn begun(&self, texts: usize) {
        self.until(|| self.engine.seen.lock().unwrap().len() == texts).await;
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        patiently(async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes()).await
    }

    /// A completion of "hi" with further fields.
    pub async fn complete(&self, further: Value) -> Answer {
        self.post("/v1/completions", &with(json!({"model": MODEL, "prompt": "hi"}), further)).await
    }

    /// A chat of "hi" with further fields.
    pub async fn chat(&self, further: Value) -> Answer {
        self.post("/v1/chat/completions", &with(chat(), further)).await
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let length = format!("Content-Length: {}\r\n", body.len());
        let mut stream = self.open(method, path, headers, &length).await;
        // A service that has refused by the head need not take the rest.
        let _ = stream.write_all(body).await;
        Answer::read(&mut stream).await
    }

    /// A connection on which a request's head was sent; `more` are further lines of it.
    pub async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], more: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}{more}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// A connection on which a request for texts was sent.
    pub async fn begin(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let length = format!("Content-Length: {}\r\n", body.len());
        let mut stream = self.open("POST", path, &[("Content-Type", "application/json")], &length).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    }
}

/// The smallest chat.
pub fn chat() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
}

/// `base` with the fields of `further`.
pub fn with(mut base: Value, further: Value) -> Value {
    let Value::Object(further) = further else { panic!("an object") };
    base.as_object_mut().unwrap().extend(further);
    base
}

/// Waits, but not for ever.
pub async fn patiently<T>(task: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, task).await.expect("it hangs")
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Reads to the end of the connection.
    pub async fn read(stream: &mut TcpStream) -> Answer {
        let mut bytes = Vec::new();
        // A reset after the answer is no matter.
        let _ = patiently(stream.read_to_end(&mut bytes)).await;
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { whole(body) } else { body.to_owned() };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Status, code and parameter of an error.
    pub fn error(&self) -> (u16, String, Option<String>) {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["type"].is_string(), "{self:?}");
        let code = error["code"].as_str().unwrap().to_owned();
        (self.status, code, error["param"].as_str().map(ToOwned::to_owned))
    }

    /// The data of the events, which all but comments are; whether the last is `[DONE]`.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let events = self.body.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
        let mut data: Vec<&str> = events.map(|event| event.strip_prefix("data: ").unwrap()).collect();
        let done = data.last() == Some(&"[DONE]");
        data.truncate(data.len() - usize::from(done));
        (data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect(), done)
    }
}

/// A body that came in chunks. One that was cut off is as much as came.
fn whole(mut chunked: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = chunked.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        let Some(chunk) = rest.get(..size) else { break };
        body.push_str(chunk);
        chunked = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    body
}
