-- The ledger's tables. `entries` holds every accepted note in order; all other tables are read out of the notes, so that
-- `verify` can rebuild them. Nothing is ever updated or deleted: triggers refuse it, but in `unsettled`, which is a list.

CREATE TABLE about (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- One index space for everything that was accepted. `root` is the RFC 6962 root over the leaves 0 to `number`.
CREATE TABLE entries (
    number INTEGER PRIMARY KEY CHECK (number >= 0),
    kind TEXT NOT NULL CHECK (kind IN ('receipt', 'price', 'grant', 'fund', 'delegate', 'settle', 'correct', 'audit', 'penalty', 'appeal', 'key',
        'origin')),
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 32),
    leaf BLOB NOT NULL UNIQUE CHECK (length(leaf) = 32),
    root BLOB NOT NULL CHECK (length(root) = 32),
    received INTEGER NOT NULL,
    note TEXT NOT NULL
) STRICT;
CREATE INDEX entries_by_kind ON entries (kind, number);

-- What all receipts of a session have in common. `entry` is the receipt that was accepted first.
CREATE TABLE sessions (
    entry INTEGER PRIMARY KEY REFERENCES entries (number),
    session BLOB NOT NULL UNIQUE CHECK (length(session) = 32),
    worker BLOB NOT NULL,
    payer BLOB NOT NULL,
    payee BLOB NOT NULL,
    grant_leaf BLOB NOT NULL,
    price_leaf BLOB NOT NULL
) STRICT;
CREATE INDEX sessions_by_grant ON sessions (grant_leaf);
CREATE INDEX sessions_by_payee ON sessions (payee);
CREATE INDEX sessions_by_payer ON sessions (payer);

-- Kept narrow: of everything that is written, receipts are written most. `session` is the session's `entry`.
CREATE TABLE receipts (
    entry INTEGER PRIMARY KEY REFERENCES entries (number),
    session INTEGER NOT NULL REFERENCES sessions (entry),
    seq INTEGER NOT NULL CHECK (seq > 0),
    billed INTEGER NOT NULL CHECK (billed >= 0),
    UNIQUE (session, seq)
) STRICT;

-- Sessions whose highest receipt lies after their last settlement, so that what waits is found without walking through all that
-- ever were. What is settled goes out of it.
CREATE TABLE unsettled (
    session INTEGER PRIMARY KEY REFERENCES sessions (entry)
) STRICT;

-- Who signed a grant, so that those of one account can be counted.
CREATE TABLE grants (
    entry INTEGER PRIMARY KEY REFERENCES entries (number),
    payer BLOB NOT NULL
) STRICT;
CREATE INDEX grants_by_payer ON grants (payer);

-- From when until when a wallet lets a worker earn for it, so that one that holds is found without reading them all.
CREATE TABLE delegations (
    entry INTEGER PRIMARY KEY REFERENCES entries (number),
    worker BLOB NOT NULL,
    payee BLOB NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL
) STRICT;
CREATE INDEX delegations_by_pair ON delegations (worker, payee, ends, begins);

CREATE TABLE settlements (
    entry INTEGER PRIMARY KEY REFERENCES entries (number),
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 32),
    payer BLOB NOT NULL,
    payee BLOB NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes > 0),
    nanokvr INTEGER NOT NULL CHECK (nanokvr > 0),
    pending_until INTEGER NOT NULL
) STRICT;
CREATE INDEX settlements_by_payee ON settlements (payee);
CREATE INDEX settlements_by_end ON settlements (pending_until);

-- What was settled of each session. A session's settled stretches follow each other without overlap.
CREATE TABLE settled_sessions (
    session BLOB NOT NULL,
    to_seq INTEGER NOT NULL,
    from_seq INTEGER NOT NULL CHECK (from_seq <= to_seq),
    bytes INTEGER NOT NULL,
    entry INTEGER NOT NULL REFERENCES settlements (entry),
    PRIMARY KEY (session, to_seq),
    UNIQUE (session, from_seq)
) STRICT;

CREATE TABLE accounts (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('treasury', 'payer', 'pending', 'posted')),
    owner BLOB NOT NULL,
    UNIQUE (kind, owner)
) STRICT;

-- Double entry: each row takes an amount from one account and gives it to another, so the sum of all balances is zero.
-- `cause` is the note behind it; a note has each of its steps once. Balances are sums over these rows, never cached.
CREATE TABLE postings (
    number INTEGER PRIMARY KEY,
    cause INTEGER NOT NULL REFERENCES entries (number),
    step TEXT NOT NULL CHECK (step IN ('fund', 'settle', 'post', 'reverse')),
    debit INTEGER NOT NULL REFERENCES accounts (number),
    credit INTEGER NOT NULL REFERENCES accounts (number) CHECK (credit <> debit),
    nanokvr INTEGER NOT NULL CHECK (nanokvr > 0),
    at INTEGER NOT NULL,
    UNIQUE (cause, step)
) STRICT;
CREATE INDEX postings_by_debit ON postings (debit, nanokvr);
CREATE INDEX postings_by_credit ON postings (credit, nanokvr);

-- Receipts that say something else about a (session, seq) that is taken: three signatures convict whoever made both.
CREATE TABLE conflicts (
    id BLOB PRIMARY KEY CHECK (length(id) = 32),
    against INTEGER NOT NULL REFERENCES entries (number),
    received INTEGER NOT NULL,
    note TEXT NOT NULL
) STRICT;
