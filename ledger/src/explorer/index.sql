-- The explorer's index: read out of the ledger's entries and postings, and nothing that cannot be read out again. It may be
-- deleted at any time. Names (digests of 32 bytes) are numbered, so that mentions of them stay small.

CREATE TABLE progress (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    network TEXT NOT NULL,
    -- Entries read so far, the leaf hash of the last of them, and the last posting and conflict that were read.
    entries INTEGER NOT NULL,
    leaf BLOB,
    postings INTEGER NOT NULL,
    conflicts INTEGER NOT NULL,
    -- Wallets that were ever named.
    wallets INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE kinds (kind TEXT PRIMARY KEY, entries INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE names (
    number INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    -- The public key whose digest it is, where some entry gives it in full.
    key BLOB
) STRICT;

-- Fields of notes that hold names: `receipt` and `worker`.
CREATE TABLE fields (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    field TEXT NOT NULL,
    UNIQUE (kind, field)
) STRICT;

CREATE TABLE mentions (
    name INTEGER NOT NULL,
    field INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (name, field, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    name INTEGER PRIMARY KEY,
    payee INTEGER NOT NULL,
    receipts INTEGER NOT NULL,
    -- Bytes: billed by the highest receipt, and settled.
    billed INTEGER NOT NULL,
    settled INTEGER NOT NULL
) STRICT;

-- Wallets and paying accounts; name 0 is the sum over all wallets. Amounts in nanoKVR.
CREATE TABLE wallets (
    name INTEGER PRIMARY KEY,
    receipts INTEGER NOT NULL DEFAULT 0,
    sessions INTEGER NOT NULL DEFAULT 0,
    settlements INTEGER NOT NULL DEFAULT 0,
    metered INTEGER NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0,
    reversed INTEGER NOT NULL DEFAULT 0,
    pending INTEGER NOT NULL DEFAULT 0,
    posted INTEGER NOT NULL DEFAULT 0,
    credit INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX wallets_by_credit ON wallets (credit DESC, name);

CREATE TABLE payers (
    name INTEGER PRIMARY KEY,
    funded INTEGER NOT NULL DEFAULT 0,
    available INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE settlements (
    entry INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    payee INTEGER NOT NULL,
    payer INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    nanokvr INTEGER NOT NULL,
    at INTEGER NOT NULL,
    pending_until INTEGER NOT NULL,
    state TEXT NOT NULL
) STRICT;

-- Every move of credit, under each wallet and paying account that it touches.
CREATE TABLE moves (
    owner INTEGER NOT NULL,
    -- 1 where it is the owner's wallet, 0 where it is its paying account.
    wallet INTEGER NOT NULL,
    posting INTEGER NOT NULL,
    cause INTEGER NOT NULL,
    step TEXT NOT NULL,
    -- What it does to the owner's credit: positive in, negative out, 0 where pending credit is posted.
    nanokvr INTEGER NOT NULL,
    -- The owner's credit after it.
    after INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (owner, wallet, posting)
) STRICT, WITHOUT ROWID;

-- Per wallet and day (Unix seconds over 86,400; owner 0 is the whole network): metered bytes by the time the ledger received
-- the receipts, and credit by the time it moved.
CREATE TABLE days (
    owner INTEGER NOT NULL,
    day INTEGER NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0,
    credit INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE conflicts (
    against INTEGER NOT NULL,
    id BLOB NOT NULL,
    received INTEGER NOT NULL,
    PRIMARY KEY (against, id)
) STRICT, WITHOUT ROWID;
