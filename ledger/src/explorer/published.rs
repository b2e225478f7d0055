//! What the log publishes, read from its folder as anybody would read it: the checkpoint, who signed it, and proofs.
//!
//! Nothing is signed and nothing is written here. A proof is verified before it is handed out, so that a page never gives
//! away a file that fails.

use std::path::{Path, PathBuf};

use axum::extract::{Path as AddressPath, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvasir_merkle::{Hash, verify_inclusion};
use kvasir_wire::note::{Note, SignatureLine, Verifier};
use maud::{Markup, html};

use super::frame::{Page, Problem, strict_headers};
use super::question::number;
use super::show::{grouped, moment, stranger};
use super::{Explorer, View};
use crate::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, FolderSource, LogSource as _, MAX_CHECKPOINT_BYTES, ProofFile,
    Prover,
};
use crate::publish::Publisher;

/// Folder of the log, beside the database.
const LOG_FOLDER: &str = "log";
/// File with the log's verifier key, beside the database.
const LOG_KEY_FILE: &str = "log.vkey";
/// Longest text of a verifier key that is read.
const MAX_KEY_BYTES: u64 = 1_024;

/// Where a log lies, and whose signatures are expected on its heads.
#[derive(Clone)]
pub(crate) struct PublicLog {
    folder: PathBuf,
    /// The log's own key, where it is known.
    key: Option<Verifier>,
    /// Witnesses that are asked.
    witnesses: Vec<CosignerKey>,
}

/// The published head.
struct Published {
    checkpoint: Checkpoint,
    note: Note,
    log: PublicLog,
}

impl PublicLog {
    /// The log that `publisher` publishes.
    pub(crate) fn of(publisher: &Publisher) -> Self {
        Self {
            folder: publisher.folder().to_owned(),
            key: Some(publisher.verifier()),
            witnesses: publisher.witnesses().iter().map(|witness| witness.key.clone()).collect(),
        }
    }

    /// The log that another process publishes beside the database in `folder`.
    fn beside(folder: &Path) -> Self {
        Self { folder: folder.join(LOG_FOLDER), key: log_key(folder), witnesses: Vec::new() }
    }
}

/// Reads the published head. None where nothing is published.
fn published(view: &View<'_>) -> Result<Option<Published>, Problem> {
    let log = view.inner.log.clone().unwrap_or_else(|| PublicLog::beside(&view.inner.folder));
    let unreadable = |why: String| {
        tracing::warn!(folder = %log.folder.display(), why, "the published checkpoint cannot be read");
        Problem::Question(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The published checkpoint cannot be read.".to_owned(),
            "The operator's log says why.".to_owned(),
        )
    };
    let read = FolderSource(log.folder.clone()).read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES);
    let Some(bytes) = read.map_err(|error| unreadable(error.to_string()))? else { return Ok(None) };
    let note = Note::parse(&bytes).map_err(|error| unreadable(error.to_string()))?;
    let checkpoint = Checkpoint::parse(note.text()).map_err(|error| unreadable(error.to_string()))?;
    Ok(Some(Published { checkpoint, note, log }))
}

fn log_key(folder: &Path) -> Option<Verifier> {
    let path = folder.join(LOG_KEY_FILE);
    if std::fs::metadata(&path).ok()?.len() > MAX_KEY_BYTES {
        return None;
    }
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Published {
    /// The proof of one entry, verified against the published root.
    fn proof(&self, index: u64, leaf: &Hash, note: &str) -> Result<ProofFile, String> {
        let source = FolderSource(self.log.folder.clone());
        let Checkpoint { size, root, .. } = &self.checkpoint;
        let proof = Prover::new(&source, *size).inclusion(index).map_err(|error| error.to_string())?;
        verify_inclusion(leaf, index, *size, &proof.hashes, root).map_err(|error| error.to_string())?;
        let extra = Some(note.as_bytes().to_vec());
        Ok(ProofFile { extra, index, hashes: proof.hashes, checkpoint: self.note.clone() })
    }

    fn signed_by(&self, line: &SignatureLine) -> Markup {
        let fails = html! { span.state.reversed { "Does not verify" } };
        if let Some(key) = self.log.key.as_ref().filter(|key| *key.name() == line.name && key.id() == line.id)
        {
            return match self.note.verify(std::slice::from_ref(key)) {
                Ok(_) => html! { span.state.posted { "Verified" } " the log's own" },
                Err(_) => fails,
            };
        }
        let known = |key: &&CosignerKey| *key.name() == line.name && key.id() == line.id;
        if let Some(key) = self.log.witnesses.iter().find(known) {
            return match key.verify_line(self.note.text(), line) {
                Ok(cosigned) => {
                    html! { span.state.posted { "Verified" } " witness, cosigned at " (moment(cosigned.time)) }
                }
                Err(_) => fails,
            };
        }
        html! { "By a key that this ledger's settings do not name" }
    }

    /// Witnesses that are asked and are not among the signers of this head.
    fn missing(&self) -> impl Iterator<Item = &CosignerKey> {
        let signed = |key: &CosignerKey| {
            self.note.signatures().iter().any(|line| *key.name() == line.name && key.id() == line.id)
        };
        self.log.witnesses.iter().filter(move |key| !signed(key))
    }
}

/// `/entry/<number>/proof`
pub(super) async fn proof(
    State(explorer): State<Explorer>,
    path: AddressPath<String>,
) -> Result<Response, Problem> {
    let asked = number(&path)?;
    let file = explorer.page(move |view| proof_file(view, asked)).await?;
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"entry-{asked}.tlog-proof\""));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::CONTENT_DISPOSITION, disposition.unwrap_or(HeaderValue::from_static("attachment"))),
    ];
    Ok((strict_headers(), headers, file).into_response())
}

fn proof_file(view: &View<'_>, asked: u64) -> Result<String, Problem> {
    let entry = super::entry::find(view, asked)?;
    let Some(published) = published(view)?.filter(|published| asked < published.checkpoint.size) else {
        return Err(Problem::Question(
            StatusCode::NOT_FOUND,
            format!("Entry {} is not published yet, so there is no proof of it.", grouped(asked)),
            "Come back when the log's checkpoint covers it; see the page about the log.".to_owned(),
        ));
    };
    let proof = published.proof(asked, &entry.leaf, &entry.note).map_err(|why| {
        tracing::error!(entry = asked, why, "the published log does not prove an entry of this ledger");
        Problem::Question(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("The published log does not prove entry {}.", grouped(asked)),
            "Tell the operator: run `kvasir-ledger verify`, and audit the log.".to_owned(),
        )
    })?;
    Ok(proof.to_string())
}

/// Where an entry stands in the published log, as a field of its page.
pub(super) fn place_of(view: &View<'_>, number: u64) -> Markup {
    let published = published(view);
    html! {
        div {
            dt { "Proof" }
            dd {
                @match published {
                    Ok(Some(published)) if number < published.checkpoint.size => {
                        a href={ "/entry/" (number) "/proof" } { "Download entry-" (number) ".tlog-proof" }
                        " under the head of " (grouped(published.checkpoint.size)) " entries"
                    }
                    Ok(Some(published)) => {
                        "Not published yet: the published head has " (grouped(published.checkpoint.size)) " entries"
                    }
                    Ok(None) => "This ledger publishes no log yet",
                    Err(_) => "The published log cannot be read now",
                }
            }
        }
    }
}

/// `/log`
pub(super) async fn log(State(explorer): State<Explorer>) -> Result<Page, Problem> {
    explorer
        .page(|view| {
            let (entries, root) = view.ask(|answers| answers.head())?;
            let published = published(view)?;
            let body = html! {
                h1 { "Log" }
                p.lead {
                    "All entries are the leaves of one tree. Its root stands for every byte of them: whoever keeps a root "
                    "sees later whether anything before it was changed."
                }
                @match &published {
                    Some(published) => (published_head(view, published, entries)?),
                    None => p.notice { "This ledger publishes no log yet: no checkpoint lies in its folder." },
                }
                section aria-labelledby="head" {
                    h2 #head { "Head of the ledger" }
                    dl.fields {
                        div { dt { "Entries" } dd { (grouped(entries)) } }
                        div { dt { "Root" } dd { code.full { (root) } } }
                    }
                }
            };
            Ok(view.page("Log", body))
        })
        .await
}

fn published_head(view: &View<'_>, published: &Published, entries: u64) -> Result<Markup, Problem> {
    let Checkpoint { origin, size, root } = &published.checkpoint;
    let here = match size.checked_sub(1) {
        None => true,
        Some(last) => view.ask(|answers| answers.entry(last))?.is_some_and(|entry| entry.root == *root),
    };
    let witnesses = published.note.signatures().iter().filter(|line| line.name != *origin).count();
    Ok(html! {
        dl.tiles {
            div { dt { "Published entries" } dd { (grouped(*size)) } }
            div { dt { "Not published yet" } dd { (grouped(entries.saturating_sub(*size))) } }
            div { dt { "Witnesses on this head" } dd { (witnesses) } }
        }
        section aria-labelledby="published" {
            h2 #published { "Published head" }
            dl.fields {
                div { dt { "Origin" } dd { code.full { (stranger(&origin.to_string())) } } }
                div { dt { "Entries" } dd { (grouped(*size)) } }
                div { dt { "Root" } dd { code.full { (root) } } }
                @if let Some(key) = &published.log.key { div { dt { "Key of the log" } dd { code.full { (key) } } } }
            }
            ul.checks {
                li class=(if here { "holds" } else { "broken" }) {
                    span.mark { @if here { "Yes" } @else { "No" } }
                    " The published root is the root of this ledger's first " (grouped(*size)) " entries."
                }
            }
        }
        section aria-labelledby="signers" {
            h2 #signers { "Who signed it" }
            div.scroll role="region" aria-labelledby="signers" tabindex="0" {
                table {
                    thead { tr { th scope="col" { "Name" } th scope="col" { "Key id" } th scope="col" { "Signature" } } }
                    tbody {
                        @for line in published.note.signatures() {
                            tr {
                                th scope="row" { (stranger(&line.name.to_string())) }
                                td { code { (line.id) } }
                                td { (published.signed_by(line)) }
                            }
                        }
                        @for key in published.missing() {
                            tr {
                                th scope="row" { (stranger(&key.name().to_string())) }
                                td { code { (key.id()) } }
                                td { span.state.pending { "Missing" } " asked for this head, has not cosigned it yet" }
                            }
                        }
                    }
                }
            }
            p {
                "A witness has seen that this head extends every head it cosigned before. Readers who each demand more than "
                "half of the same witnesses are shown one history, as long as those witnesses are honest."
            }
        }
        section aria-labelledby="checkpoint" {
            h2 #checkpoint { "The checkpoint, as it is" }
            pre.note tabindex="0" aria-labelledby="checkpoint" { (crate::plain_text::printable(&published.note.to_string())) }
            @if view.inner.log.is_some() {
                p { "Read it without these pages: " a href="/checkpoint" { "/checkpoint" } ", with the tiles under /tile/." }
            }
        }
    })
}
