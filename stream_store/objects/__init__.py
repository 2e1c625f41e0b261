"""The object-store stream: S3, Google Cloud Storage, Azure and, for tests, a folder.

    stream.json            who the stream is; created once
    outbox.json            whose it is; created once
    probe                  shows that the store refuses to create a name twice
    batches/…/PREV_ID      one object per append, named by the ID that it follows, never changed
    states/…/NUMBER        what holds below the floor: a new number for each change
    merged/NUMBER-TOKEN    many batches in one object; counts when a state names it
    readers/HASH.json      how far a table or a group has come

Why two relays, merges and trims cannot harm each other
-------------------------------------------------------
All that is asked of the store: an object appears whole or not at all; put-if-absent lets one of
several creators through; a read or a listing sees every write that ended before it began. S3,
Google Cloud Storage and Azure promise these; the first thing a writer does is to try the second.
No clock, no lease and no lock is relied on. Any party may be stopped anywhere, for any time, and
go on or never go on. An answer may get lost, and a request be carried out late.

Words. The *newest state* is the one with the highest number; its *floor* F says that everything
through F is in the merged objects that it names, or trimmed. The *chain* begins at F: the batch
named F, then the batch named by that one's last ID, and so on; where there is none, the *tail* is.

Rules.
 1. States: number n + 1 is created put-if-absent by someone who has seen n, with a floor that is
    not lower. No state is ever deleted (superseded ones are emptied).
 2. A batch is deleted only when its name is below the floor of a state that exists.
 3. A merge covers batches that it has read, from the floor of state n up to a batch's last ID; it
    makes state n + 1, so it counts only when nobody has changed the state since. A merged object is
    deleted only when no state that is or can become the newest names it: it carries the number
    of the one state that it was written for.
 4. A writer creates only a name that it has seen to be the tail. It acknowledges only when it has
    looked at the newest state *after* the create, and the floor is not above the name.
 5. A reader looks below the floor only at merged objects, above it only at batches. What it has read
    of a batch counts only when it has looked at the newest state *after* that, and the floor is not
    above the name: a freed name may have been created again by a writer that came too late. An
    object that is gone, or below the floor by now, sends the reader back to the newest state; it is
    an error only when there is no newer one.

(a) *States are a compare-and-set register.* Numbers are never freed, so by rule 1 at most one state
    follows n, and the floor never goes down.
(b) *A name at or above the floor has never been freed*, by rule 2 and (a). So as long as F <= p, the
    first creator of the name p is its only one, for ever.
(c) *What is acknowledged was appended at the tail.* Let a writer create p, and let F be the floor at
    the moment when the create takes effect. If F <= p: by (b) nobody has ever created p before. The
    writer had seen p to be the tail, and a chain that ends at p can only grow by the name p: so p
    was still the tail, and our batch is now the one and only that follows it. If F > p: that state
    existed before the create, so the look after it (rule 4) sees a floor above p, by (a), and the
    writer does not acknowledge. It must be the look after the create: a floor seen before it may be
    raised, and p freed, in between. That is the reason for the second request of an append.
(d) *What is acknowledged stays.* The batch p is on the chain. A state whose floor is above p was
    made either by a merge, which has read every batch on the chain from the old floor to the new one
    (rule 3; by (b) there is one batch under each of these names, and it is never changed), so p's
    events are in its merged objects; or by a trim, which is meant to remove them. Only then is the
    batch deleted.
(e) *A refused create tells nothing by itself.* The batch that is there may be our own, from a
    request whose answer got lost. If it has the same bytes, it is taken as ours and rule 4 goes on as
    if the create had succeeded, for (c) asks only that the object is there with our content: then
    it does not matter who put it there. Otherwise the tail is looked up and `judge` decides.
(f) *A writer that finds the floor above its batch* may have been too late, or may have appended and
    been merged at once. It does not matter: it judges again against what the stream holds now,
    and gets DUPLICATE in the second case.
(g) *A request that is carried out late* (after its sender has given up, or died) is a create by a
    writer that never looks at the floor: by (c) it is either a proper append, or lands below the
    floor, where nobody looks, and is swept.
(h) *Readers see no gap and no duplicate.* The chain from F on and the merged objects below F are, by
    (d), the same events however the line between them moves. A batch that was read under a name not
    below the floor, as seen afterwards, is by (b) the one and only; names of merged objects are
    never used twice. A reader continues by ID from where it is, and each object must follow what
    came before.

An exhaustive model of this, with mutants that leave out each of the rules, is
`tests/model/object_model.py`.
"""
