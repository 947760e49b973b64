/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands. */
#include "cli.h"

#define JSON                                                \
    {                                                       \
        "json", 0, CLI_FLAG, NULL, "one JSON object a line" \
    }
#define JOURNAL_OPTION                                                      \
    {                                                                       \
        "journal", 'j', CLI_PATH, "DIR",                                    \
            "the journal's directory or bundle (or STATEROOM_JOURNAL_PATH)" \
    }

const struct cli_command cli_commands[] = {
    {"demo",
     "",
     0,
     0,
     "two nodes and two engines on this machine move real bytes, refuse, abort, lose and replay",
     "Starts two stateroomd and two synthetic engines as processes of this machine. Requests of a "
     "production trace move KV pages from one engine's pool to the other's; some are refused "
     "before "
     "the queue, some are aborted in mid-transfer, and the decode engine is killed once and comes "
     "back. Every delivered page is compared byte for byte. At the end both journals are replayed.",
     "stateroom demo --requests 60",
     {{"requests", 'n', CLI_NUMBER, "N", "how many requests (default 120)"},
      {"provider", 'p', CLI_TEXT, "NAME", "libfabric provider: tcp (default) or shm"},
      {"dir", 'd', CLI_PATH, "DIR",
       "keep journals and logs there (default: a temporary directory)"},
      {"trace", 't', CLI_PATH, "FILE", "the trace of requests"},
      {"pages", 0, CLI_NUMBER, "N", "pages of each pool (default 224, 2 MiB each)"},
      {"seed", 's', CLI_NUMBER, "N", "which requests are refused and aborted (default 1)"},
      {"kill-node", 'k', CLI_TEXT, "P|D", "also kill -9 this node in mid-run and start it again"},
      {"keep", 0, CLI_FLAG, NULL, "keep the temporary directory"}},
     cmd_demo},
    {"replay",
     "[JOURNAL]",
     0,
     1,
     "run a journal's inputs again and compare every transition and digest",
     "Runs the machine over the recorded inputs. Identical: every transition, every digest of the "
     "state and of the effects is the recorded one. Else the first difference is shown with both "
     "sides, field by field, and the exit status is 1. With --check all invariants are checked "
     "after every step. With --step the journal is walked by hand: next, previous, goto N, run to "
     "a phase, a room or whatever an entry has, back to it, state, diff of two places; help lists "
     "it. Commands may come from a pipe or a file: then a wrong one ends it with exit status 2, "
     "and what is not found gives 4.",
     "printf 'run room=7 failed\\nstate 7\\n' | stateroom replay --step "
     "/var/lib/stateroom/journal",
     {JOURNAL_OPTION,
      {"step", 's', CLI_FLAG, NULL, "walk it by hand, with commands on standard input"},
      {"until", 'u', CLI_NUMBER, "SEQ", "stop after this entry; with --step: begin there"},
      {"room", 'r', CLI_NUMBER, "ROOM",
       "print the steps that are about this room; with --step: walk along it"},
      {"check", 'c', CLI_FLAG, NULL,
       "check the invariants of every room after every step (slow with many rooms)"},
      {"disable", 0, CLI_TEXT, "PROTECTION",
       "switch a protection off and check (nothing is compared)"},
      JSON},
     cmd_replay},
    {"history",
     "ROOM [JOURNAL]",
     1,
     2,
     "one room's life: what happened, when, and why it ended",
     "Lists everything that the node knows about the room: what its engine and its peer said, what "
     "the node decided and told.",
     "stateroom history 7 -j /var/lib/stateroom/journal --diagram",
     {JOURNAL_OPTION,
      {"diagram", 'd', CLI_FLAG, NULL, "draw it as a space-time diagram"},
      {"ascii", 'a', CLI_FLAG, NULL, "draw with ASCII only"},
      JSON},
     cmd_history},
    {"why",
     "ROOM [JOURNAL]",
     1,
     2,
     "in plain language: what became of a room, who decided it, who was told, what was held",
     "Says in one paragraph how the room began at this node, how it ended and who decided that, "
     "which ranks and which counterparts were told and when, what was in flight or held at that "
     "moment and until when. Of a room that has not ended: what it waits for. Times are from the "
     "room's begin or from its verdict. A number that was used several times: its newest life on "
     "each side. The other node's journal has the other half.",
     "stateroom why 4711 -j /var/lib/stateroom/journal",
     {JOURNAL_OPTION, {"all", 'a', CLI_FLAG, NULL, "older lives of the number, too"}, JSON},
     cmd_why},
    {"rooms",
     "[JOURNAL]",
     0,
     1,
     "rooms, by outcome, status, reason, duration",
     "Lists the rooms of a journal, one row a life: how it ended, when it was opened, and how long "
     "it took from open to verdict (a live one: until now). A room whose open was refused is "
     "listed as refused. Filters narrow the list.",
     "stateroom rooms -j /var/lib/stateroom/journal --outcome failed --http 503",
     {JOURNAL_OPTION,
      {"outcome", 'o', CLI_TEXT, "WORD", "succeeded, failed, live or refused"},
      {"http", 0, CLI_NUMBER, "STATUS", "failed with this status"},
      {"reason", 0, CLI_TEXT, "TEXT", "the reason has this text in it, in capitals or not"},
      {"slowest", 's', CLI_FLAG, NULL, "the longest first"},
      {"limit", 'n', CLI_NUMBER, "N", "at most so many (default 50; 0: all)"},
      JSON},
     cmd_rooms},
    {"scenario",
     "FILE...",
     1,
     CLI_WORDS_MAX,
     "run incidents written in the scenario language, in virtual time",
     "Runs each file on simulated nodes: real machines, journals' entries and codecs; clock, "
     "network, fabric and engines are simulated, so nothing sleeps and the same file always gives "
     "the same entries. A failed expectation is shown with what was seen and the room's last "
     "transitions. docs/scenarios.md has the language.",
     "stateroom scenario tests/scenarios/*/*.scn",
     {{"journal", 'j', CLI_PATH, "DIR", "keep each node's journal: DIR/SCENARIO/NODE"},
      {"seed", 's', CLI_NUMBER, "N", "jitter latencies and break ties by this seed (0: none)"},
      {"runs", 'n', CLI_NUMBER, "N", "run with the seeds 1 to N"},
      {"disable", 0, CLI_TEXT, "PROTECTION", "switch a protection off to see the race happen"},
      {"bite", 0, CLI_FLAG, NULL, "each must also fall without each protection that it needs"},
      JSON},
     cmd_scenario},
    {"verify",
     "[JOURNAL]",
     0,
     1,
     "check every entry's bytes, the chain, the numbers and the room index",
     "Reads the whole journal in a process of its own (a damaged file may crash its reader) and "
     "names the first fault.",
     "stateroom verify /var/lib/stateroom/journal",
     {JOURNAL_OPTION, JSON},
     cmd_verify},
    {"tail",
     "[JOURNAL]",
     0,
     1,
     "the newest entries, and the next ones as they come",
     "Prints entries as one line each. Reading never holds up the node.",
     "stateroom tail -f -n 20 /var/lib/stateroom/journal",
     {JOURNAL_OPTION,
      {"follow", 'f', CLI_FLAG, NULL, "wait for more"},
      {"lines", 'n', CLI_NUMBER, "N", "how many to begin with (default 10)"},
      JSON},
     cmd_tail},
    {"stat",
     "[JOURNAL]",
     0,
     1,
     "what is in a journal: entries, kinds, outcomes, reasons",
     "Counts entries by input, outcomes, and why inputs were ignored and commands refused.",
     "stateroom stat /var/lib/stateroom/journal",
     {JOURNAL_OPTION, JSON},
     cmd_stat},
    {"export",
     "[JOURNAL]",
     0,
     1,
     "a journal, or a range of it, as one file that can be sent",
     "Writes a bundle: the entries in blocks that are compressed, checked and chained, with the "
     "snapshots that they need, so that the file replays by itself. Every command that reads a "
     "journal reads a bundle too. It may be written while the node runs.",
     "stateroom export /var/lib/stateroom/journal -o node-p.bundle",
     {JOURNAL_OPTION,
      {"output", 'o', CLI_PATH, "FILE", "the bundle to be made; - for standard output"},
      {"from", 0, CLI_NUMBER, "SEQ", "begin with this entry (default: the journal's first)"},
      {"until", 'u', CLI_NUMBER, "SEQ", "end with this entry (default: the journal's last)"},
      JSON},
     cmd_export},
    {"import",
     "BUNDLE DIR",
     2,
     2,
     "a journal's directory from a bundle",
     "Makes a journal with the bundle's entries, numbers, chain and snapshots, with a room index, "
     "in a directory that must not be there yet. Worth it for a large bundle: every command reads "
     "bundles, but makes the index of rooms anew each time.",
     "stateroom import node-p.bundle /tmp/node-p",
     {JSON},
     cmd_import},
    {"slice",
     "[JOURNAL]",
     0,
     1,
     "the smallest journal that does again what happened to one room",
     "Writes a bundle with the state before the room's first entry and the inputs that are about "
     "it, the node, its engines and its peers, run again without the other rooms; what happens to "
     "the room is compared with the journal. A room that had a hand in it (its pages were in the "
     "way, say) is added. Where the room cannot be had alone the whole range is written. --redact "
     "makes names and reasons unreadable; numbers, times and sizes stay.",
     "stateroom slice /var/lib/stateroom/journal --room 4711 -o room-4711.bundle",
     {JOURNAL_OPTION,
      {"room", 'r', CLI_NUMBER, "ROOM", "the room"},
      {"output", 'o', CLI_PATH, "FILE", "the bundle to be made; - for standard output"},
      {"redact", 0, CLI_FLAG, NULL, "make names and reasons unreadable, to share it"},
      JSON},
     cmd_slice},
    {"repair",
     "[JOURNAL]",
     0,
     1,
     "save what is before the damage into a new journal",
     "Reads the damaged journal or bundle in a process of its own, and copies each entry whose "
     "bytes, number and chain are well into a new journal, up to the first that is not. The "
     "damaged one is not touched. Segments after the damage replay by themselves: copy their "
     "files into a directory of their own.",
     "stateroom repair /var/lib/stateroom/journal -o /var/lib/stateroom/journal-saved",
     {JOURNAL_OPTION,
      {"output", 'o', CLI_PATH, "DIR", "the directory of the journal to be made"},
      JSON},
     cmd_repair},
    {"compact",
     "[JOURNAL]",
     0,
     1,
     "give back the space inside a journal's files that nothing uses",
     "Rewrites each segment without its unused pages; the node must not run. No entry goes: that "
     "is what trim and retention (journal.keep_bytes, journal.keep_hours) are for.",
     "stateroom compact /var/lib/stateroom/journal",
     {JOURNAL_OPTION, JSON},
     cmd_compact},
    {"trim",
     "[JOURNAL]",
     0,
     1,
     "remove the oldest segments of a journal",
     "Removes whole segments from the old end, never the newest; the node must not run (a running "
     "node does the same by journal.keep_bytes and journal.keep_hours). What is left begins with "
     "a snapshot and replays by itself.",
     "stateroom trim /var/lib/stateroom/journal --keep-bytes 80GiB",
     {JOURNAL_OPTION,
      {"keep-bytes", 0, CLI_TEXT, "SIZE", "remove while the journal is larger, as 80GiB"},
      {"keep-hours", 0, CLI_NUMBER, "N", "remove what ended longer ago"},
      {"before", 'b', CLI_NUMBER, "SEQ", "remove segments that end before this entry"},
      JSON},
     cmd_trim},
    {"snapshot",
     "[JOURNAL]",
     0,
     1,
     "keep the machine's state at the journal's end",
     "Replays the journal to its end and keeps the machine's state there, so that the next start "
     "need not; the node must not run. With --segment another segment begins with it, so that all "
     "before it can be trimmed.",
     "stateroom snapshot --segment /var/lib/stateroom/journal",
     {JOURNAL_OPTION, {"segment", 0, CLI_FLAG, NULL, "begin a segment with it"}, JSON},
     cmd_snapshot},
    {"completion",
     "SHELL",
     1,
     1,
     "completion for bash or zsh",
     "Prints a completion script: source it, or install it where your shell looks.",
     "source <(stateroom completion bash)",
     {{NULL, 0, CLI_FLAG, NULL, NULL}},
     cmd_completion},
    {"help",
     "COMMAND",
     0,
     1,
     "help on a command",
     "The same as stateroom COMMAND --help.",
     "stateroom help replay",
     {{"man", 0, CLI_FLAG, NULL, "as a man page (roff)"}},
     cmd_help},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, {{NULL, 0, CLI_FLAG, NULL, NULL}}, NULL},
};
