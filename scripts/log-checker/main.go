// Verifies a log of Kvasir's with Go's own implementation of notes and trees (golang.org/x/mod/sumdb).
//
// It checks, in the folder that it is given (ledger/examples/small-log.rs writes one): both heads under the log's key, the
// cosignatures under the witness's, the proof file's inclusion proof, the consistency proof, every tile by reading all
// leaf hashes through Go's tile reader, which authenticates them, and every entry against its leaf hash. Proofs that Go
// makes out of the tiles are the ones in the files. Then it spoils each of them and expects to be refused.
package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

var folder string

func main() {
	if len(os.Args) != 2 {
		fail("usage: log-checker FOLDER")
	}
	folder = os.Args[1]
	log, err := note.NewVerifier(strings.TrimSpace(string(read("log.vkey"))))
	must("the log's key", err)
	witness := newCosigner(strings.TrimSpace(string(read("witness.vkey"))))
	known := note.VerifierList(log, witness)

	head := open("checkpoint", read("checkpoint"), known, log.Name())
	old := open("checkpoint.old", read("checkpoint.old"), known, log.Name())
	refuseSpoiledNote(read("checkpoint"), known)

	// The proof file.
	file := string(read("entry.tlog-proof"))
	before, checkpoint, found := strings.Cut(file, "\n\n")
	expect("the proof file has a checkpoint", found)
	named := open("the proof file's checkpoint", []byte(checkpoint), known, log.Name())
	expect("the proof file names the newest head", named == head)
	lines := strings.Split(before, "\n")
	expect("the proof file's first line", lines[0] == "c2sp.org/tlog-proof@v1")
	extra, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	must("the proof file's extra line", err)
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[2], "index "), 10, 64)
	must("the proof file's index", err)
	inclusion := tlog.RecordProof(hashes(lines[3:]))
	leaf := tlog.RecordHash(extra)
	must("the inclusion proof", tlog.CheckRecord(inclusion, head.N, head.Hash, index, leaf))
	expect("another entry is refused", tlog.CheckRecord(inclusion, head.N, head.Hash, index, tlog.RecordHash([]byte("x"))) != nil)
	expect("another index is refused", tlog.CheckRecord(inclusion, head.N, head.Hash, index+1, leaf) != nil)

	// The consistency proof.
	consistency := tlog.TreeProof(hashes(strings.Split(strings.TrimSpace(string(read("consistency"))), "\n")))
	must("the consistency proof", tlog.CheckTree(consistency, head.N, head.Hash, old.N, old.Hash))
	expect("another old size is refused", tlog.CheckTree(consistency, head.N, head.Hash, old.N+1, old.Hash) != nil)
	expect("another old root is refused", tlog.CheckTree(consistency, head.N, head.Hash, old.N, head.Hash) != nil)

	// The tiles and the entries.
	reader := tlog.TileHashReader(head, tiles{})
	made, err := tlog.ProveRecord(head.N, index, reader)
	must("an inclusion proof out of the tiles", err)
	expect("Go makes the same inclusion proof", same(made, inclusion))
	between, err := tlog.ProveTree(head.N, old.N, reader)
	must("a consistency proof out of the tiles", err)
	expect("Go makes the same consistency proof", same(between, consistency))
	for start := int64(0); start < head.N; start += 256 {
		width := min(256, head.N-start)
		indexes := make([]int64, width)
		for at := range indexes {
			indexes[at] = tlog.StoredHashIndex(0, start+int64(at))
		}
		leaves, err := reader.ReadHashes(indexes)
		must("the tiles", err)
		bundle := read(path("entries", start/256, int(width)))
		for at, leaf := range leaves {
			expect("the bundle is long enough", len(bundle) >= 2)
			length := 2 + int(binary.BigEndian.Uint16(bundle))
			expect("the bundle is long enough", len(bundle) >= length)
			expect(fmt.Sprintf("entry %d has its leaf hash", start+int64(at)), tlog.RecordHash(bundle[2:length]) == leaf)
			bundle = bundle[length:]
		}
		expect("nothing follows the bundle", len(bundle) == 0)
	}
	fmt.Printf("Go verifies the log: %d entries, 2 heads with cosignatures, inclusion and consistency\n", head.N)
}

// open verifies a head by both keys and reads it.
func open(what string, bytes []byte, known note.Verifiers, origin string) tlog.Tree {
	opened, err := note.Open(bytes, known)
	must(what, err)
	expect(what+" is signed by the log and its witness", len(opened.Sigs) == 2 && len(opened.UnverifiedSigs) == 0)
	lines := strings.Split(opened.Text, "\n")
	expect(what+" has three lines and names its key", len(lines) == 4 && lines[0] == origin)
	size, err := strconv.ParseInt(lines[1], 10, 64)
	must(what, err)
	root, err := tlog.ParseHash(lines[2])
	must(what, err)
	return tlog.Tree{N: size, Hash: root}
}

func refuseSpoiledNote(good []byte, known note.Verifiers) {
	spoiled := bytes.Replace(good, []byte("\n700\n"), []byte("\n701\n"), 1)
	_, err := note.Open(spoiled, known)
	expect("a head with another size is refused", err != nil && !bytes.Equal(good, spoiled))
}

// cosigner verifies cosignatures (C2SP tlog-cosignature, type 4), which sumdb/note does not know.
type cosigner struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

func newCosigner(text string) note.Verifier {
	parts := strings.SplitN(text, "+", 3)
	expect("the witness's key has three parts", len(parts) == 3)
	id, err := strconv.ParseUint(parts[1], 16, 32)
	must("the witness's key id", err)
	key, err := base64.StdEncoding.DecodeString(parts[2])
	must("the witness's key", err)
	expect("the witness's key is of type 4", len(key) == 33 && key[0] == 4)
	return cosigner{parts[0], uint32(id), key[1:]}
}

func (c cosigner) Name() string    { return c.name }
func (c cosigner) KeyHash() uint32 { return c.hash }
func (c cosigner) Verify(text, signature []byte) bool {
	if len(signature) != 72 {
		return false
	}
	signed := fmt.Sprintf("cosignature/v1\ntime %d\n%s", binary.BigEndian.Uint64(signature), text)
	return ed25519.Verify(c.key, []byte(signed), signature[8:])
}

// tiles reads tiles from the folder. Go's paths carry the tile height, those of C2SP do not.
type tiles struct{}

func (tiles) Height() int                         { return 8 }
func (tiles) SaveTiles(_ []tlog.Tile, _ [][]byte) {}
func (tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	var data [][]byte
	for _, tile := range wanted {
		expect("Go names the tile alike", strings.Replace(tile.Path(), "tile/8/", "tile/", 1) == path(strconv.Itoa(tile.L), tile.N, tile.W))
		data = append(data, read(path(strconv.Itoa(tile.L), tile.N, tile.W)))
	}
	return data, nil
}

func path(level string, n int64, width int) string {
	groups := fmt.Sprintf("%03d", n%1000)
	for n /= 1000; n > 0; n /= 1000 {
		groups = fmt.Sprintf("x%03d/%s", n%1000, groups)
	}
	if width < 256 {
		groups += fmt.Sprintf(".p/%d", width)
	}
	return "tile/" + level + "/" + groups
}

func hashes(lines []string) []tlog.Hash {
	var all []tlog.Hash
	for _, line := range lines {
		hash, err := tlog.ParseHash(line)
		must("a hash of a proof", err)
		all = append(all, hash)
	}
	return all
}

func same(left, right []tlog.Hash) bool {
	if len(left) != len(right) {
		return false
	}
	for at := range left {
		if left[at] != right[at] {
			return false
		}
	}
	return true
}

func min(left, right int64) int64 {
	if left < right {
		return left
	}
	return right
}

func read(name string) []byte {
	bytes, err := os.ReadFile(filepath.Join(folder, name))
	must("reading", err)
	return bytes
}

func must(what string, err error) {
	if err != nil {
		fail(what + ": " + err.Error())
	}
}

func expect(what string, holds bool) {
	if !holds {
		fail("not so: " + what)
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "log-checker: "+why)
	os.Exit(1)
}
