"""Every Redis key of a run, in one place; the Lua scripts get these names from here.

All keys start with `stream_rl:{run}:`. The braces are Redis's hash tag: a run lies in one slot, so one script may touch
all of it. Sorted sets of samples are scored by group number, those of groups by v0: the oldest comes first.
"""

__all__ = ["FAMILIES", "SINGLE", "lua_names", "prefix"]

NAMESPACE = "stream_rl:"

SINGLE = {
    "run": "hash: rules, state, counters, the trainer's incarnation",
    "configured": "hash: rule -> its value in the settings with which the run was last opened",
    "changes": "list: JSON of each change of a rule since the run was first opened",
    "live": "sorted set: admitted groups not yet trained, filtered or dead-lettered",
    "ready": "sorted set: the live groups that are complete",
    "queue": "sorted set: samples never leased",
    "resume": "sorted set: samples that were leased and came back",
    "holders": "sorted set: producers, scored by the server time (ms) at which they count as silent",
    "terms": "hash: producer -> milliseconds that its newest heartbeat lasts",
    "requests": "hash: producer -> nonce of its newest lease call",
    "engines": "hash: engine -> JSON of its url and pid",
    "versions": "hash: serving engine -> version text",
    "serving": "sorted set: serving engines, scored by version step",
    "pins": "hash: engine kept at its version -> the server time (ms) at which that ends, and the version",
    "ledger": "hash: step -> JSON of the groups and the knobs in force",
    "outcomes": "list: JSON of each ended attempt",
    "dead": "hash: dead-lettered group -> JSON of why",
    "requeued": "list: dead-lettered groups whose prompts are admitted next",
    "reasserted": "set: prompts beyond the cursor that the trainer, after a loss, said it has trained",
    "prompts": "string: JSON of what the run's prompts and their numbers rest on",
    "processes": "hash: process -> JSON",
    "images": "hash: image -> number of groups that name it",
}
FAMILIES = {
    "group": "hash: v0, prompt, state, refills, finished, attempt:<index>, reward:<index>; if given up and requeued,"
    " requeue_nonce, requeued_as",
    "sample": "hash: state, lease, nonce, holder, how it ended; totals: the journal's records, bytes, complete turns,"
    " response tokens and generated ones, in one field",
    "journal": "list: the sample's records, a large one as `@<blob>:<bytes>`",
    "blob": "string: a large record, <sample>:<nonce>:<position>:<fingerprint>; it expires unless a commit names it",
    "blobs": "set: the blobs that a sample's journal names, as <nonce>:<position>:<fingerprint>",
    "image": "string: an image's bytes under their hash; it expires unless a commit names it",
    "pictured": "set: the images that a group's turns name",
    "held": "set: samples leased to one producer",
    "recoveries": "set: one nonce for each recovery of a kind",
}


def prefix(run: str) -> str:
    """What every key of the run starts with."""
    return f"{NAMESPACE}{{{run}}}:"


def lua_names() -> str:
    """The same names for Lua: `key_live`, `key_journal(id)`."""
    single = [f"local key_{name} = KEYS[1] .. '{name}'" for name in SINGLE]
    families = [f"local function key_{name}(id) return KEYS[1] .. '{name}:' .. id end" for name in FAMILIES]
    return "\n".join(single + families) + "\n"
