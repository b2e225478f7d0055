//! What is in the store: put there on purpose, listed, removed; and what is not put there.

use std::fs;

use ed25519_dalek::SigningKey;
use kvasir_operate::{key_file, setup};
use kvasir_plugin::{KeyId, UnixSeconds, Unverified, Validity};
use serde_json::Value;

use crate::{Home, text};

#[test]
fn an_older_release_that_was_never_here_is_installed_on_purpose() {
    let home = Home::new();
    home.reports(&["plugin", "install", text(&home.package("9.0.0", 900))]);
    let older = home.package("8.0.0", 800);
    home.refuses(
        &["plugin", "install", text(&older)],
        &["900 was seen", "install PACKAGE --allow-downgrade"],
    );
    let installed = home.reports(&["plugin", "install", text(&older), "--allow-downgrade"]);
    assert_eq!((&installed["active"], &installed["revision"]), (&true.into(), &800.into()));
    assert_eq!(home.run()["plugin"], installed["plugin"]);
    let history = home.reports(&["plugin", "history"]);
    let last = history["entries"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["event"], &last["overridden_revision"]), (&"activated".into(), &900.into()));
}

#[test]
fn the_list_tells_who_signed_from_who_is_said_to_have() {
    let home = Home::new();
    let key = SigningKey::from_bytes(&[9; 32]);
    let (public, id) = (
        kvasir_plugin::PublisherKey { key: key.verifying_key(), name: None }.line(),
        KeyId::of(&key.verifying_key()).to_string(),
    );
    home.reports(&["plugin", "trust", "add", &public]);
    let package = home.package_by("9.0.0", 900, &key);
    let plugin = home.reports(&["plugin", "install", text(&package), "--no-activate"])["plugin"].clone();
    let listed = |plugin: &Value| {
        let list = home.reports(&["plugin", "list"]);
        list["plugins"].as_array().unwrap().iter().find(|one| one["plugin"] == *plugin).unwrap().clone()
    };
    let told = listed(&plugin);
    assert_eq!(
        (&told["publishers"][0], &told["says_signed_by"]),
        (&id.clone().into(), &Value::Array(vec![]))
    );
    home.reports(&["plugin", "trust", "remove", &public]);
    let told = listed(&plugin);
    assert_eq!((&told["says_signed_by"][0], &told["publishers"]), (&id.into(), &Value::Array(vec![])));
    assert_eq!(told["state"], "refused");

    // Put there by other hands, since no command does.
    let own = key_file::load(&home.path("config/keys/publisher.key")).unwrap();
    let now = setup::now().0;
    for (version, from, until, state) in
        [("9.1.0", now - 90, now - 30, "expired"), ("9.2.0", now + 9_000, now + 9_900, "not-yet-valid")]
    {
        let validity = Validity { not_before: UnixSeconds(from), expires: UnixSeconds(until) };
        let bytes = fs::read(home.package_valid(version, 900, own.signing_key(), validity)).unwrap();
        let digest = Unverified::read(&bytes).unwrap().claims.unwrap().digest.to_string();
        fs::write(home.path(&format!("data/plugins/packages/{digest}.kvp")), bytes).unwrap();
        assert_eq!(listed(&digest.into())["state"], state);
    }
}

#[test]
fn nobody_signs_for_a_time_that_is_over_or_has_not_begun() {
    let home = Home::new();
    let own = key_file::load(&home.path("config/keys/publisher.key")).unwrap();
    home.reports(&["key", "new", text(&home.path("second.key"))]);
    let now = setup::now().0;
    for (from, until, said) in
        [(now - 90, now - 30, "it expired at"), (now + 9_000, now + 9_900, "valid only from")]
    {
        let validity = Validity { not_before: UnixSeconds(from), expires: UnixSeconds(until) };
        let package = home.package_valid("9.0.0", 900, own.signing_key(), validity);
        let before = fs::read(&package).unwrap();
        let second = home.path("second.key");
        home.refuses(&["plugin", "sign", text(&package), "--key", text(&second)], &[said]);
        assert_eq!(fs::read(&package).unwrap(), before);
    }
    let output = home.command(&["plugin", "sign", "--days", "0"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--days"), "{said}");
}

#[test]
fn an_installed_plugin_is_removed_unless_it_is_in_use() {
    let home = Home::new();
    let first = home.run()["plugin"].as_str().unwrap().to_owned();
    let [second, third] = [900, 901].map(|revision| {
        let installed = home.reports(&["plugin", "install", text(&home.package("9.0.0", revision))]);
        installed["plugin"].as_str().unwrap().to_owned()
    });
    home.refuses(&["plugin", "remove", &third], &["is active"]);
    home.refuses(&["plugin", "remove", &second], &["rollback"]);
    assert_eq!(home.reports(&["plugin", "remove", &first[..8]])["removed"], first);
    home.refuses(&["plugin", "remove", &first], &["not installed"]);
    assert_eq!(home.reports(&["plugin", "list"])["plugins"].as_array().unwrap().len(), 2);
    home.run();
}

#[test]
fn install_without_a_name_takes_the_newest_file_and_no_folder() {
    let home = Home::new();
    let folder = home.path("working");
    fs::create_dir_all(&folder).unwrap();
    let install = || home.command(&["plugin", "install"]).current_dir(&folder).output().unwrap();
    fs::create_dir(folder.join("new.kvp")).unwrap();
    let said = String::from_utf8_lossy(&install().stderr).into_owned();
    assert!(said.contains("no package (*.kvp)"), "{said}");
    fs::copy(home.package("9.0.0", 900), folder.join("old.kvp")).unwrap();
    fs::create_dir(folder.join("newer.kvp")).unwrap();
    let output = install();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    home.refuses(&["plugin", "install", "nowhere.kvp"], &["there is no kernel package at nowhere.kvp"]);
}
