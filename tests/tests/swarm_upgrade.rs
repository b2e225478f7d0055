//! Another version of a plugin takes over in the middle of a generation, and goes back: no session is cut, no call is
//! computed twice, no bit moves, and every receipt names the plugin that served it. A candidate that lies is found out.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir_dispatch::{Placement, Statistics, Swarm, SwarmOptions};
use kvasir_experts::{KernelLimits, VerifiedPlugin};
use kvasir_operate::settings::Settings;
use kvasir_operate::{key_file, setup, watch_store};
use kvasir_tests::program;
use kvasir_tests::swarm_scene::lying_kernel::lying;
use kvasir_tests::swarm_scene::*;
use kvasir_wire::id::{KeyDigest, PluginDigest};
use kvasir_wire::receipt::Receipt;
use kvasir_wire::ticket::Role;
use kvasir_worker::{Event, PluginSwitch, ShadowOptions, WorkerOptions};

/// Live calls that a candidate must answer alike.
const CALLS: u32 = 12;
/// Tokens said before anything happens, and after.
const QUIET: usize = 5;
/// Between two tokens: what goes on beside the generation has time to be beside it.
const PACE: Duration = Duration::from_millis(15);

/// The same kernel as another version: another manifest, so another package and another digest.
fn version(number: &str, revision: u32) -> VerifiedPlugin {
    sign(&renamed(number, revision), 7)
}

fn renamed(number: &str, revision: u32) -> kvasir_plugin::PackageContents {
    let mut contents = kvasir_tests::released_plugin::contents();
    let manifest = String::from_utf8(contents.manifest).unwrap();
    let manifest = manifest.replace("version = \"0.2.0\"", &format!("version = \"{number}\""));
    let manifest = manifest.replace("kernel_revision = 2", &format!("kernel_revision = {revision}"));
    contents.manifest = manifest.into_bytes();
    contents
}

fn digest(plugin: &VerifiedPlugin) -> PluginDigest {
    PluginDigest(plugin.digest().0)
}

/// A worker whose ticket names the publisher, so that it may run every version of theirs.
fn worker_options(scene: &Scene, sessions: u16) -> WorkerOptions {
    let mut options = scene.worker_options(30);
    options.ticket = scene.ticket_with(Role::Worker, options.key.public(), plugin(), |claims| {
        claims.plugins.clear();
        claims.publishers = vec![KeyDigest(plugin().publisher().0)];
        claims.limits.sessions = sessions;
    });
    options.shadow = ShadowOptions { calls: CALLS, within: PATIENCE };
    options
}

/// A backbone that trusts these versions, best first.
fn swarm_options(scene: &Scene, host: &Host, plugins: &[&VerifiedPlugin]) -> SwarmOptions {
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.ticket = scene.ticket_with(Role::Backbone, options.key.public(), plugin(), |claims| {
        claims.plugins.clear();
        claims.publishers = vec![KeyDigest(plugin().publisher().0)];
    });
    options.plugins = plugins.iter().map(|plugin| digest(plugin)).collect();
    // The compiler takes the processors from whoever computes a call beside it.
    options.deadlines = NO_HURRY;
    options
}

/// Whether an act has had its effect, by the worker's events.
type Until = Box<dyn Fn(&[Event]) -> bool>;

/// What is to happen beside a generation, one after the other.
struct Script<'a> {
    worker: &'a RunningWorker,
    switch: PluginSwitch,
    /// A plugin to offer, and how one sees that it is done with.
    acts: Vec<(VerifiedPlugin, Until)>,
    /// The first token at which the next act may begin, or the generation end.
    quiet_until: usize,
    seen: usize,
    offered: bool,
    begun: Instant,
}

impl<'a> Script<'a> {
    fn new(worker: &'a RunningWorker) -> Self {
        let switch = worker.switch();
        let begun = Instant::now();
        Self { worker, switch, acts: Vec::new(), quiet_until: QUIET, seen: 0, offered: false, begun }
    }

    fn act(mut self, plugin: &VerifiedPlugin, done: impl Fn(&[Event]) -> bool + 'static) -> Self {
        self.acts.push((plugin.clone(), Box::new(done)));
        self
    }

    /// Before a token: whether there is to be another one.
    fn goes_on(&mut self, step: usize) -> bool {
        assert!(self.begun.elapsed() < 3 * PATIENCE, "it takes too long: {:#?}", self.worker.log.events());
        if step < self.quiet_until {
            return true;
        }
        let Some((plugin, done)) = self.acts.first() else { return false };
        if !self.offered {
            self.offered = true;
            self.seen = self.worker.log.events().len();
            self.switch.offer(plugin.clone(), KernelLimits::default());
            // The compiler takes seconds, and a test's model has room for few tokens: this one takes as long.
            let (wanted, seen) = (digest(plugin).to_string(), self.seen);
            let mut number = 0;
            self.worker.log.wait_for(|event| {
                number += 1;
                let is_it = match event {
                    Event::Proven { plugin, .. } | Event::CandidateRejected { plugin, .. } => {
                        *plugin == wanted
                    }
                    _ => false,
                };
                let news = is_it && number > seen;
                number = if news { 0 } else { number };
                news.then_some(())
            });
        }
        std::thread::sleep(PACE);
        if done(&self.worker.log.events()[self.seen..]) {
            drop(self.acts.remove(0));
            self.offered = false;
            self.quiet_until = step + QUIET;
        }
        true
    }
}

fn unloaded(plugin: &VerifiedPlugin) -> impl Fn(&[Event]) -> bool + 'static {
    let plugin = digest(plugin).to_string();
    move |events| events.iter().any(|event| *event == Event::Unloaded { plugin: plugin.clone() })
}

fn rejected(events: &[Event]) -> bool {
    rejection(events).is_some()
}

fn rejection(events: &[Event]) -> Option<String> {
    events.iter().find_map(|event| match event {
        Event::CandidateRejected { reason, .. } => Some(reason.clone()),
        _ => None,
    })
}

/// Calls compared, and whether the new session began before the old one ended.
fn passed(events: &[Event]) -> Vec<(u32, bool, String)> {
    let passed = events.iter().filter_map(|event| match event {
        Event::CandidatePassed { calls, side_by_side, reason, .. } => {
            Some((*calls, *side_by_side, reason.clone()))
        }
        _ => None,
    });
    passed.collect()
}

/// Every session ended in order, with these plugins in this order; its receipts are its plugin's alone, and cover all.
fn check_sessions(scene: &Scene, statistics: &Statistics, plugins: &[&VerifiedPlugin]) {
    assert_eq!(statistics.failovers, 0, "{statistics:#?}");
    assert_eq!(statistics.accepted, statistics.remote_calls, "{statistics:#?}");
    let found: Vec<_> = statistics.workers.iter().map(|session| session.plugin.clone()).collect();
    let expected: Vec<_> = plugins.iter().map(|plugin| digest(plugin).to_string()).collect();
    assert_eq!(found, expected);
    let receipts: Vec<Receipt> = {
        let notes = scene.ledger.receipts.lock().unwrap();
        notes.iter().map(|note| Receipt::parse(note.text()).unwrap()).collect()
    };
    let last = scene.ledger.last_receipts();
    for (session, plugin) in statistics.workers.iter().zip(plugins) {
        assert_eq!(session.ended.as_deref(), Some("finished in order"), "{statistics:#?}");
        assert!(session.accepted > 0, "it served: {statistics:#?}");
        let own = receipts.iter().filter(|receipt| receipt.terms.session.to_string() == session.session);
        for receipt in own {
            assert_eq!(receipt.terms.plugin, digest(plugin), "of session {}", session.session);
        }
        let last = &last[&session.session];
        assert!(last.is_final);
        assert_eq!(last.billed().get(), session.bytes_up + session.bytes_down, "every call is paid");
    }
}

#[test]
fn an_upgrade_and_a_rollback_in_the_middle_of_a_generation_cut_no_session_and_move_no_bit() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let (old, new) = (plugin(), version("0.2.1", 3));
    let worker = RunningWorker::start(worker_options(&scene, 2));
    let swarm = join(&host, swarm_options(&scene, &host, &[old, &new]));
    let mut script = Script::new(&worker).act(&new, unloaded(old)).act(old, unloaded(&new));
    let said = host.say_while(&mut swarm.experts(host.local()), |step| script.goes_on(step));

    let statistics = swarm.finish();
    check_sessions(&scene, &statistics, &[old, &new, old]);
    assert_eq!(statistics.local_calls, 0, "there was always a session to ask: {statistics:#?}");
    let config = host.model.config();
    assert_eq!(statistics.round_trips, u64::from(config.layers) * said.tokens.len() as u64);
    for (calls, side_by_side, reason) in passed(&worker.log.events()) {
        assert!(calls >= CALLS && side_by_side, "{calls}: {reason}");
    }
    let tokens = said.tokens.len();
    assert_eq!(said, host.say(host.local().as_mut(), tokens), "of {tokens} tokens");
    drop(worker);
}

#[test]
fn where_a_second_session_or_a_second_copy_does_not_fit_the_old_session_ends_first_and_the_backbone_fills_the_gap()
 {
    let host = Host::new(tiny());
    let config = host.model.config();
    let blob =
        host.model.expert(kvasir_model::LayerIndex(0), kvasir_model::ExpertIndex(0)).unwrap().blob_bytes();
    let all = blob as u64 * u64::from(config.layers * config.experts);
    for (sessions, store_bytes, why) in
        [(1, all * 2, "one session at a time"), (2, all + all / 3, "there is room for")]
    {
        let scene = Scene::new();
        let (old, new) = (plugin(), version("0.2.1", 3));
        let mut options = worker_options(&scene, sessions);
        options.store_bytes = store_bytes;
        let worker = RunningWorker::start(options);
        let swarm = join(&host, swarm_options(&scene, &host, &[old, &new]));
        let mut script = Script::new(&worker).act(&new, unloaded(old));
        let said = host.say_while(&mut swarm.experts(host.local()), |step| script.goes_on(step));
        swarm.wait_for_workers(1, PATIENCE).unwrap();
        host.say(&mut swarm.experts(host.local()), QUIET);

        let statistics = swarm.finish();
        check_sessions(&scene, &statistics, &[old, &new]);
        assert_eq!(statistics.workers[1].experts, (config.layers * config.experts) as usize);
        let [(calls, false, reason)] = &passed(&worker.log.events())[..] else { panic!("{why}") };
        assert!(*calls >= CALLS && reason.contains(why), "{calls}: {reason}");
        for event in worker.log.events() {
            if let Event::Holding { bytes, .. } = event {
                assert!(bytes <= store_bytes);
            }
        }
        let tokens = said.tokens.len();
        assert_eq!(said, host.say(host.local().as_mut(), tokens), "of {tokens} tokens");
        drop(worker);
    }
}

#[test]
fn one_wrong_bit_on_a_live_call_keeps_a_candidate_out() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let old = plugin();
    let mut contents = renamed("0.2.2", 4);
    contents.component = lying(&contents.component, host.model.config().hidden);
    let liar = sign(&contents, 7);
    let worker = RunningWorker::start(worker_options(&scene, 2));
    let swarm = join(&host, swarm_options(&scene, &host, &[old, &liar]));
    let mut script = Script::new(&worker).act(&liar, rejected);
    let said = host.say_while(&mut swarm.experts(host.local()), |step| script.goes_on(step));

    let events = worker.log.events();
    let proven = events
        .iter()
        .any(|event| matches!(event, Event::Proven { plugin, .. } if *plugin == digest(&liar).to_string()));
    assert!(proven, "its golden vectors are honest");
    let reason = rejection(&events).unwrap();
    assert!(reason.contains("differs from the plugin in use on live call"), "{reason}");
    assert!(passed(&events).is_empty());
    check_sessions(&scene, &swarm.finish(), &[old]);
    let tokens = said.tokens.len();
    assert_eq!(said, host.say(host.local().as_mut(), tokens));
}

#[test]
fn a_candidate_that_fails_its_vectors_or_that_nobody_allows_does_not_take_over() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let old = plugin();
    let mut contents = renamed("0.2.3", 5);
    *contents.vectors.get_mut("q8_0.vector").unwrap().last_mut().unwrap() ^= 1;
    let wrong = sign(&contents, 7);
    let foreign = sign(&renamed("0.2.4", 6), 8);
    let unknown = version("0.2.5", 7);
    let worker = RunningWorker::start(worker_options(&scene, 2));
    // The backbone does not trust the last one.
    let swarm = join(&host, swarm_options(&scene, &host, &[old, &wrong, &foreign]));
    let mut script = Script::new(&worker).act(&wrong, rejected);
    script = script.act(&foreign, rejected).act(&unknown, rejected);
    let said = host.say_while(&mut swarm.experts(host.local()), |step| script.goes_on(step));
    let reasons: Vec<_> =
        worker.log.events().iter().filter_map(|event| rejection(std::slice::from_ref(event))).collect();
    let [vectors, ticket, network] = &reasons[..] else { panic!("{reasons:#?}") };
    assert!(vectors.contains("q8_0.vector"), "{vectors}");
    assert!(ticket.contains("neither it nor its publisher"), "{ticket}");
    assert!(network.contains("nothing_in_common"), "{network}");
    check_sessions(&scene, &swarm.finish(), &[old]);
    let tokens = said.tokens.len();
    assert_eq!(said, host.say(host.local().as_mut(), tokens));
}

#[test]
fn a_worker_that_nobody_calls_changes_over_after_a_while_and_one_refused_with_it_goes_back() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let (old, new) = (plugin(), version("0.2.1", 3));
    let mut options = worker_options(&scene, 1);
    options.shadow = ShadowOptions { calls: CALLS, within: Duration::from_millis(200) };
    let worker = RunningWorker::start(options);
    worker.switch().offer(new.clone(), KernelLimits::default());
    let (from, to) = (digest(old).to_string(), digest(&new).to_string());
    let switched = |from: &str, to: &str| {
        let wanted = Event::Switched { from: from.to_owned(), to: to.to_owned() };
        worker.log.wait_for(|event| (*event == wanted).then_some(()));
    };
    switched(&from, &to);
    assert_eq!(passed(&worker.log.events()), [(0, false, "no session is open".to_owned())]);
    // A backbone that has the old version alone: the worker serves it with that.
    let swarm = Swarm::join(host.model.clone(), swarm_options(&scene, &host, &[old])).unwrap();
    switched(&to, &from);
    swarm.wait_for_workers(1, PATIENCE).unwrap();
    let said = host.say(&mut swarm.experts(host.local()), QUIET);
    assert_eq!(said, host.say(host.local().as_mut(), QUIET));
    check_sessions(&scene, &swarm.finish(), &[old]);
    drop(worker);
}

/// An operator's word.
fn kvasir(home: &Path, words: &[&str]) {
    let output = Command::new(program("kvasir")).env("KVASIR_HOME", home).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_running_worker_follows_the_store_forwards_and_back_below_what_was_seen() {
    let home = tempfile::tempdir().unwrap();
    kvasir(home.path(), &["setup"]);
    let settings = Settings::load(None, Some(home.path())).unwrap();
    let active = || settings.store().active(kvasir_plugin::UnixSeconds(now())).unwrap().unwrap();
    let old = active();

    let scene = Scene::new();
    let mut options = worker_options(&scene, 1);
    options.plugins = vec![old.clone()];
    options.ticket = scene.ticket_with(Role::Worker, options.key.public(), &old, |claims| {
        claims.plugins.clear();
        claims.publishers = vec![KeyDigest(old.publisher().0)];
        claims.limits.sessions = 1;
    });
    options.shadow = ShadowOptions { calls: CALLS, within: Duration::from_millis(200) };
    let worker = RunningWorker::start(options);
    let refused = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&refused);
    let events = Arc::new(move |event: Event| theirs.lock().unwrap().push(event));
    let watching =
        watch_store::offer_active(&settings, old.digest(), worker.switch(), false, events).unwrap();
    let switched = |from: &VerifiedPlugin, to: &VerifiedPlugin| {
        let (from, to) = (digest(from).to_string(), digest(to).to_string());
        let wanted = Event::Switched { from, to };
        worker.log.wait_for(|event| (*event == wanted).then_some(()));
    };

    let publisher = key_file::load(&home.path().join("config/keys/publisher.key")).unwrap();
    let contents = renamed("9.0.0", 900);
    let package = kvasir_plugin::pack(&contents, setup::validity(1), publisher.signing_key()).unwrap();
    let file = home.path().join("swiglu-9.0.0.kvp");
    std::fs::write(&file, package).unwrap();
    kvasir(home.path(), &["plugin", "upgrade", file.to_str().unwrap()]);
    let new = active();
    assert_ne!(new.digest(), old.digest());
    switched(&old, &new);

    kvasir(home.path(), &["plugin", "rollback", "--allow-downgrade"]);
    assert_eq!(active().digest(), old.digest());
    switched(&new, &old);
    drop(watching);
    let refused = refused.lock().unwrap().clone();
    assert!(refused.is_empty(), "{refused:#?}");
    drop(worker);
}
