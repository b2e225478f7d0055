//! `kvasir serve` as a user runs it: what it answers is what `kvasir run` says, whole, streamed and among many; who goes away
//! leaves; who is told to end writes to the end what was begun. And the same service over a swarm.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvasir_backbone::{Backbone, Experts};
use kvasir_dispatch::{Placement, Watcher};
use kvasir_model::ChatTemplate;
use kvasir_operate::choices::DeviceChoice;
use kvasir_operate::demo::network::{Network, NetworkOptions};
use kvasir_operate::demo::report::Steps;
use kvasir_operate::process::{Server, report};
use kvasir_operate::remote::PlacementChoice;
use kvasir_serve::api::{self, Engine as _, ModelLanguage};
use kvasir_serve::batched::Batched;
use kvasir_serve::engine_figures;
use kvasir_serve::scheduler::{Figures, Scheduler, SchedulerOptions};
use kvasir_serve::swarm_view::SwarmView;
use kvasir_tests::http::{self, Events};
use kvasir_tests::swarm_scene::*;
use kvasir_tests::{build_programs, program, root};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const PROMPTS: [&str; 3] = ["The capital of France is", "Die Hauptstadt von Norwegen ist", "Kenya is"];
const TOKENS: usize = 24;
/// Texts that one request may ask for.
const CHOICES: usize = 16;

fn kvasir(home: &tempfile::TempDir) -> Command {
    let mut command = Command::new(program("kvasir"));
    command.current_dir(root()).args(["--json", "--home"]).arg(home.path());
    command
}

/// A service as a process of its own, on atlas.
struct Service {
    server: Server,
    home: tempfile::TempDir,
}

impl Service {
    fn start(more: &[&str]) -> Service {
        let home = tempfile::tempdir().unwrap();
        report(kvasir(&home).arg("setup")).unwrap();
        let mut command = kvasir(&home);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(more);
        let server = Server::start("serve", &mut command, home.path()).unwrap();
        Service { server, home }
    }

    fn address(&self) -> &str {
        &self.server.address
    }
}

/// A text that is asked for.
fn asked(prompt: &str) -> Value {
    json!({"model": "atlas", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0})
}

/// `base` with further fields.
fn with(mut base: Value, further: Value) -> Value {
    let Value::Object(further) = further else { panic!("an object") };
    base.as_object_mut().unwrap().extend(further);
    base
}

/// A request that keeps the engine busy for a while: many texts with long prompts.
fn long(tokens: usize, max_tokens: usize) -> Value {
    let prompt: Vec<usize> = (0..tokens).map(|at| 300 + at % 1000).collect();
    with(asked(""), json!({"prompt": prompt, "max_tokens": max_tokens, "n": CHOICES}))
}

fn complete(address: &str, body: &Value) -> Value {
    let answer = http::post(address, "/v1/completions", body).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// One figure of /metrics.
fn figure(address: &str, name: &str) -> f64 {
    let text = http::get(address, "/metrics").unwrap().body;
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// Waits, but not for ever.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_completion_is_what_kvasir_run_says_whole_and_streamed() {
    let service = Service::start(&[]);
    let tokens = TOKENS.to_string();
    let said = report(kvasir(&service.home).args(["run", "--tokens", &tokens]).args(PROMPTS)).unwrap();
    for (prompt, answer) in PROMPTS.iter().zip(said["answers"].as_array().unwrap()) {
        let whole = complete(service.address(), &asked(prompt));
        let choice = &whole["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&answer["text"], &answer["finish"]));
        assert_eq!(whole["usage"]["prompt_tokens"], answer["prompt_tokens"]);
        assert_eq!(
            whole["usage"]["completion_tokens"],
            answer["tokens"].as_array().unwrap().len(),
            "{whole}"
        );

        let body = with(asked(prompt), json!({"stream": true}));
        let mut events: Vec<String> =
            Events::of(service.address(), "/v1/completions", &body).unwrap().collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{events:?}");
        let text: String = events
            .iter()
            .map(|event| {
                let event: Value = serde_json::from_str(event).unwrap();
                event["choices"][0]["text"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(text, answer["text"].as_str().unwrap());
    }
}

#[test]
fn sixteen_clients_at_once_have_the_bits_that_each_has_alone() {
    let service = Service::start(&["--max-waves", "4", "--prefill-rows", "7"]);
    let address = service.address();
    let requests: Vec<Value> = (0..16)
        .map(|client| {
            let temperature = if client % 2 == 0 { 0.0 } else { 0.9 };
            let further = json!({
                "max_tokens": 8 + client, "seed": client, "temperature": temperature, "logprobs": 5,
            });
            with(asked(PROMPTS[client % PROMPTS.len()]), further)
        })
        .collect();
    // The probabilities' figures are the logits' bits: they are told to the last digit.
    let choices = |request: &Value| complete(address, request)["choices"].clone();
    let alone: Vec<Value> = requests.iter().map(choices).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let clients: Vec<_> = requests.iter().map(|request| scope.spawn(move || choices(request))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    let finished = "kvasir_serve_texts_total{result=\"finished\"}";
    until("all texts are counted", || figure(address, finished) == 32.0);
    assert!(figure(address, "kvasir_serve_rows_total") >= figure(address, "kvasir_serve_passes_total"));
    let waits = figure(address, "kvasir_serve_layer_wait_seconds{layer=\"0\",quantile=\"0.99\"}");
    assert!(waits > 0.0, "calls were waited for");
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    let service = Service::start(&["--max-texts", "1", "--max-queue", "15"]);
    let address = service.address();
    let gone = Events::of(address, "/v1/completions", &long(3900, 100)).unwrap();
    until("its texts are there", || {
        figure(address, "kvasir_serve_texts_running") >= 1.0
            && figure(address, "kvasir_serve_texts_open") >= CHOICES as f64
    });
    // All places are taken, and whoever comes is told so.
    let refused = http::post(address, "/v1/completions", &asked(PROMPTS[0])).unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("queue_full")));
    drop(gone);
    let ended = |word: &str| figure(address, &format!("kvasir_serve_texts_total{{result=\"{word}\"}}"));
    until("its texts are over", || ended("finished") + ended("cancelled") == CHOICES as f64);
    assert!(ended("cancelled") > 0.0);
    // Its place comes back a moment after its texts are over.
    until("whoever comes next is served", || {
        http::post(address, "/v1/completions", &asked(PROMPTS[0])).unwrap().status == 200
    });
}

#[test]
fn who_is_told_to_end_writes_to_the_end_what_was_begun() {
    let mut service = Service::start(&[]);
    let body = with(long(400, 3), json!({"stream": true}));
    let events = Events::of(service.address(), "/v1/completions", &body).unwrap();
    until("its texts are there", || figure(service.address(), "kvasir_serve_texts_open") == CHOICES as f64);
    let id = i32::try_from(service.server.id()).unwrap();
    // SAFETY: sends a signal to our own child, which has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
    until("nobody new is let in", || {
        let answer = http::post(service.address(), "/v1/completions", &asked(PROMPTS[0]));
        answer.map_or(true, |answer| answer.status == 503)
    });
    let mut events: Vec<String> = events.collect();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{events:?}");
    let is_end = |event: &&String| event.contains("\"finish_reason\":\"");
    assert_eq!(events.iter().filter(is_end).count(), CHOICES, "{events:?}");
    let ended = service.server.event("ended", PATIENCE).unwrap();
    assert!(ended["texts"]["finished"].as_u64().unwrap() >= CHOICES as u64, "{ended}");
    assert_eq!((&ended["texts"]["failed"], &ended["remote"]), (&json!(0), &Value::Null));
    assert!(service.server.stop().unwrap().success());
}

#[test]
fn a_service_over_workers_says_what_this_machine_says() {
    build_programs();
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(
        &NetworkOptions {
            folder: folder.path().to_path_buf(),
            model: root().join("models/atlas/atlas-q4_k_m.gguf"),
            workers: 1,
            round_trip: None,
            flip_bit: false,
            device: DeviceChoice::Cpu,
            listen: None,
        },
        &Steps::new(true),
    )
    .unwrap();
    let prompts = PROMPTS.map(str::to_owned);
    let local = network.run_local(&prompts, TOKENS).unwrap();
    let mut server = network.serve_remote("all", PlacementChoice::Layers).unwrap();
    for (prompt, answer) in prompts.iter().zip(&local.answers) {
        let whole = complete(&server.address, &asked(prompt));
        assert_eq!(whole["choices"][0]["text"], answer.text, "{whole}");
        assert!(whole["system_fingerprint"].as_str().unwrap().starts_with("kv_"), "{whole}");
    }
    let swarm = http::get(&server.address, "/v1/swarm").unwrap().json();
    assert!(swarm["workers"][0]["calls"].as_u64().unwrap() > 0, "{swarm}");
    let id = i32::try_from(server.id()).unwrap();
    // SAFETY: as above, our own child that was not waited for.
    assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
    let ended = server.event("ended", PATIENCE).unwrap();
    assert!(ended["remote"]["calls"].as_u64().unwrap() > 0, "{ended}");
    assert!(ended["remote"]["workers"][0]["receipted_bytes"].as_u64().unwrap() > 0, "{ended}");
    server.stop().unwrap();
    network.stop();
}

/// A service in this process.
struct InProcess {
    address: String,
    engine: Arc<Batched>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    runtime: Runtime,
}

impl InProcess {
    fn start(host: &Host, experts: impl Experts + 'static, watcher: Option<Watcher>) -> InProcess {
        InProcess::speaking(host, experts, watcher, ModelLanguage::new(Arc::clone(&host.model)))
    }

    fn speaking(
        host: &Host,
        experts: impl Experts + 'static,
        watcher: Option<Watcher>,
        language: ModelLanguage,
    ) -> InProcess {
        let backbone = Backbone::new(Arc::clone(&host.model), std::num::NonZeroUsize::new(2)).unwrap();
        let scheduler =
            Scheduler::start(Arc::new(backbone), experts, SchedulerOptions::new(1 << 40)).unwrap();
        let view = SwarmView::new("atlas", &host.model, watcher.clone());
        let end_of_text = host.model.config().end_of_text.clone();
        let swarm = Box::new(move |figures: &Figures| view.report(figures));
        let engine = Arc::new(Batched::new(scheduler, end_of_text, swarm));
        let service = api::Service {
            registry: engine_figures::registry(&engine, watcher),
            engine: Arc::clone(&engine) as Arc<dyn api::Engine>,
            language: Arc::new(language),
            settings: api::Settings { names: vec!["atlas".to_owned()], ..api::Settings::default() },
        };
        let runtime = runtime();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(api::serve(listener, service, async move {
            let _ = stopped.await;
        }));
        InProcess { address, engine, stop, task, runtime }
    }

    fn end(self) -> Figures {
        let InProcess { engine, stop, task, runtime, .. } = self;
        stop.send(()).unwrap();
        runtime.block_on(task).unwrap();
        drop(runtime);
        Arc::into_inner(engine).expect("the service is over").finish()
    }
}

/// Names tools, the choice, and in each message the calls that the assistant made.
const TOOL_TEMPLATE: &str = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{{ tool_choice }}\
    {% for message in messages %} <{{ message.role }}> {{ message.content }}\
    {% for made in message.tool_calls or [] %}<tool_call>{{ made.function.name }} {{ made.function.arguments.place }}</tool_call>{% endfor %}\
    {% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}";

#[test]
fn a_chat_with_tools_is_continued_as_the_models_template_tells_it() {
    let host = Host::new(atlas());
    let template = ChatTemplate::new(TOOL_TEMPLATE.to_owned(), BTreeMap::new());
    let language = ModelLanguage::with_template(Arc::clone(&host.model), template);
    let service = InProcess::speaking(&host, *host.local(), None, language);
    let call = json!({"name": "weather", "arguments": "{\"place\": \"Oslo\"}"});
    let chat = json!({
        "model": "atlas", "max_tokens": TOKENS, "temperature": 0,
        "messages": [
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "content": "cold", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    });
    let said = |chat: &Value, rendered: &str| {
        let answer = http::post(&service.address, "/v1/chat/completions", chat).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let (told, expected) = (answer.json(), complete(&service.address, &asked(rendered)));
        assert_eq!(told["choices"][0]["message"]["content"], expected["choices"][0]["text"], "{told}");
        assert_eq!(told["usage"], expected["usage"], "{rendered:?} is what was read");
    };
    let messages =
        "<user> Weather in Oslo? <assistant> <tool_call>weather Oslo</tool_call> <tool> cold <assistant>";
    said(&chat, &format!("[weather]auto {messages}"));
    said(&with(chat, json!({"tool_choice": "none"})), &format!("none {messages}"));
    service.end();
}

#[test]
fn a_swarm_of_one_answers_with_the_same_bits_and_is_told() {
    let host = Host::new(atlas());
    let requests = PROMPTS.map(|prompt| with(asked(prompt), json!({"logprobs": 3, "n": 2})));
    let say =
        |address: &str| requests.each_ref().map(|request| complete(address, request)["choices"].clone());
    let here = InProcess::start(&host, *host.local(), None);
    let expected = say(&here.address);
    let alone = here.engine.swarm();
    assert_eq!((alone.workers.len(), alone.rates.swarm), (0, None));
    assert!(alone.rates.local.is_some_and(|rate| rate > 0.0));
    here.end();

    let scene = Scene::new();
    let _worker = scene.worker(30);
    let layers = all_layers(&host.model);
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &layers);
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    let watcher = swarm.watcher();
    let there = InProcess::start(&host, swarm.experts(host.local()), Some(watcher.clone()));
    assert_eq!(say(&there.address), expected);

    let told = http::get(&there.address, "/v1/swarm").unwrap().json();
    let worker = &told["workers"][0];
    assert_eq!((&worker["state"], &told["layers"]), (&json!("serving"), &json!(layers.len())), "{told}");
    let held = worker["holds"].as_array().unwrap();
    let experts = u64::from(host.model.config().experts);
    assert_eq!(held.len(), layers.len());
    assert!(held.iter().all(|held| held["experts"].as_u64() == Some(experts)), "{told}");
    assert!(worker["held_bytes"].as_u64().unwrap() > 0 && worker["calls"].as_u64().unwrap() > 0, "{told}");
    assert!(worker["round_trip_ms"].as_f64().unwrap() > 0.0, "{told}");
    assert!(told["rates"]["swarm"].as_f64().unwrap() > 0.0, "{told}");
    for (name, expected) in [
        ("workers", 1.0),
        ("worker_failures_total{how=\"deadline\"}", 0.0),
        ("failovers_total", 0.0),
        ("local_calls_total", 0.0),
    ] {
        assert_eq!(figure(&there.address, &format!("kvasir_serve_{name}")), expected, "{name}");
    }
    let answers = figure(&there.address, "kvasir_serve_remote_answers_total");
    assert!(figure(&there.address, "kvasir_serve_remote_rows_total") >= answers && answers > 0.0);

    let figures = there.end();
    assert_eq!((figures.finished, figures.failed), (2 * PROMPTS.len() as u64, 0));
    let statistics = swarm.finish();
    assert_eq!(statistics.failovers, 0, "{statistics:#?}");
    // What the receipts say is told once they are there.
    let report = SwarmView::new("atlas", &host.model, Some(watcher)).report(&figures);
    let worker = &report.workers[0];
    assert_eq!((worker.state.as_str(), worker.countersigned_bytes), ("gone", receipted(&statistics)));
    assert!(worker.countersigned_bytes > 0);
    assert_eq!(worker.credit_nanokvr, 7 * worker.countersigned_bytes);
}
