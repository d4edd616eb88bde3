"""The native part of the runtime, as LLVM IR.

A job is a table of steps. Each step's work units are cut into `parts`, one for each thread that takes part, and each
part into up to 8 chunks. A thread takes the chunks of its own part from the front, then those of other parts from the
back, so that nobody waits for a thread that the system does not let run; the thread that finishes a step's last chunk
opens the next step. What is left of a part is one word: the number of the step, and the first and the last chunk, so a
thread that comes too late fails to take anything.

Workers enter a job through a gate that counts them. Whoever leads a job closes the gate at the end and waits for those
inside, since the table and the memory are his. State that threads share lies on cache lines of its own.
"""

from __future__ import annotations

# The first base that may be an array. The address of its elements is the first field behind the head of the object: so
# says numpy's ndarraytypes.h, which compiled extensions rely on.
FIRST_ARRAY, ARRAY_DATA = 2, object.__basicsize__

STEP_WORDS = 4  # entry point, argument table, work units, parts

# Words of the state: the job's number, the step, chunks done, the gate (job's number and workers inside), whether to
# stop, whether somebody has a job, the job, and from RANGES on a line for each part.
EPOCH, CURRENT, DONE, GATE, STOP, BUSY, JOB, RANGES, LINE = 0, 16, 32, 48, 64, 80, 96, 112, 16

_CHUNKS = 8


def state_words(threads: int) -> int:
    return RANGES + LINE * threads


def runtime_text(triple: str) -> str:
    """LLVM IR of the functions `tilewright_*` for a machine."""
    if triple.startswith(("x86_64", "i686")):
        declare, pause = "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    elif triple.startswith(("aarch64", "arm64")):
        declare, pause = "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"
    else:
        declare, pause = "", "%nothing = add i64 0, 0"
    places = {
        "current": CURRENT, "done": DONE, "gate": GATE, "stop": STOP, "busy": BUSY, "job": JOB, "ranges": RANGES,
        "line": LINE, "words": STEP_WORDS, "chunks": _CHUNKS, "arrays": FIRST_ARRAY, "data": ARRAY_DATA,
    }  # fmt: skip
    text = _TEXT
    for name, number in places.items():
        text = text.replace(f"${name}$", str(number))
    return text.replace("$declare$", declare).replace("$pause_now$", pause)


_TEXT = """
declare i32 @sched_yield()
$declare$

; One turn of waiting; the number of the next one.
define internal i64 @wait(i64 %turn, i64 %spins) {
entry:
  %patient = icmp ult i64 %turn, %spins
  br i1 %patient, label %pause, label %yield
pause:
  $pause_now$
  br label %done
yield:
  %ignored = call i32 @sched_yield()
  br label %done
done:
  %next = add i64 %turn, 1
  ret i64 %next
}

; How many threads share a step.
define internal i64 @parts_of(ptr %record, i64 %threads) {
  %at = getelementptr i64, ptr %record, i64 3
  %wanted = load i64, ptr %at
  %few = icmp slt i64 %wanted, %threads
  %parts = select i1 %few, i64 %wanted, i64 %threads
  %none = icmp slt i64 %parts, 1
  %result = select i1 %none, i64 1, i64 %parts
  ret i64 %result
}

; How many chunks a part has.
define internal i64 @chunks_of(ptr %record, i64 %parts) {
  %at = getelementptr i64, ptr %record, i64 2
  %units = load i64, ptr %at
  %above = add i64 %units, %parts
  %above1 = sub i64 %above, 1
  %each = udiv i64 %above1, %parts
  %few = icmp ult i64 %each, $chunks$
  %chunks = select i1 %few, i64 %each, i64 $chunks$
  %alone = icmp eq i64 %parts, 1
  %none = icmp eq i64 %chunks, 0
  %one = or i1 %alone, %none
  %result = select i1 %one, i64 1, i64 %chunks
  ret i64 %result
}

define internal ptr @record_of(ptr %state, i64 %step) {
  %job = getelementptr i64, ptr %state, i64 $job$
  %steps = load ptr, ptr %job
  %offset = mul i64 %step, $words$
  %record = getelementptr i64, ptr %steps, i64 %offset
  ret ptr %record
}

define internal ptr @range_of(ptr %state, i64 %part) {
  %offset = mul i64 %part, $line$
  %place = add i64 %offset, $ranges$
  %range = getelementptr i64, ptr %state, i64 %place
  ret ptr %range
}

; Put the chunks of a step up to be taken.
define internal void @set_up(ptr %state, i64 %step) {
entry:
  %count_at = getelementptr i64, ptr %state, i64 add (i64 $job$, i64 1)
  %count = load i64, ptr %count_at
  %exists = icmp ult i64 %step, %count
  br i1 %exists, label %some, label %done
some:
  %threads_at = getelementptr i64, ptr %state, i64 add (i64 $job$, i64 3)
  %threads = load i64, ptr %threads_at
  %record = call ptr @record_of(ptr %state, i64 %step)
  %parts = call i64 @parts_of(ptr %record, i64 %threads)
  %chunks = call i64 @chunks_of(ptr %record, i64 %parts)
  %tag = shl i64 %step, 16
  %last = shl i64 %chunks, 8
  %word = or i64 %tag, %last
  br label %each
each:
  %part = phi i64 [ 0, %some ], [ %next, %each ]
  %range = call ptr @range_of(ptr %state, i64 %part)
  store atomic i64 %word, ptr %range release, align 8
  %next = add i64 %part, 1
  %more = icmp ult i64 %next, %parts
  br i1 %more, label %each, label %done
done:
  ret void
}

; A chunk of a part in a step, from the front or from the back; -1 if there is none.
define internal i64 @take(ptr %state, i64 %part, i64 %step, i1 %front) {
entry:
  %range = call ptr @range_of(ptr %state, i64 %part)
  %first = load atomic i64, ptr %range acquire, align 8
  br label %try
try:
  %word = phi i64 [ %first, %entry ], [ %seen, %swap ]
  %tag = lshr i64 %word, 16
  %same = icmp eq i64 %tag, %step
  %low = and i64 %word, 255
  %shifted = lshr i64 %word, 8
  %high = and i64 %shifted, 255
  %left = icmp ult i64 %low, %high
  %some = and i1 %same, %left
  br i1 %some, label %swap, label %none
swap:
  %without_first = add i64 %word, 1
  %without_last = sub i64 %word, 256
  %rest = select i1 %front, i64 %without_first, i64 %without_last
  %pair = cmpxchg ptr %range, i64 %word, i64 %rest acq_rel acquire
  %seen = extractvalue { i64, i1 } %pair, 0
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %taken, label %try
taken:
  %last = sub i64 %high, 1
  %chunk = select i1 %front, i64 %low, i64 %last
  ret i64 %chunk
none:
  ret i64 -1
}

; Work on the job until it is done.
define internal void @take_part(ptr %state, i64 %thread) {
entry:
  %job = getelementptr i64, ptr %state, i64 $job$
  %count_at = getelementptr i64, ptr %job, i64 1
  %count = load i64, ptr %count_at
  %bases_at = getelementptr i64, ptr %job, i64 2
  %bases = load ptr, ptr %bases_at
  %threads_at = getelementptr i64, ptr %job, i64 3
  %threads = load i64, ptr %threads_at
  %spins_at = getelementptr i64, ptr %job, i64 4
  %spins = load i64, ptr %spins_at
  %current_at = getelementptr i64, ptr %state, i64 $current$
  %done_at = getelementptr i64, ptr %state, i64 $done$
  br label %look
look:
  %step = load atomic i64, ptr %current_at acquire, align 8
  %exists = icmp ult i64 %step, %count
  br i1 %exists, label %begin, label %leave
begin:
  %record = call ptr @record_of(ptr %state, i64 %step)
  %parts = call i64 @parts_of(ptr %record, i64 %threads)
  %chunks = call i64 @chunks_of(ptr %record, i64 %parts)
  %total = mul i64 %parts, %chunks
  %function = load ptr, ptr %record
  %arguments_at = getelementptr i64, ptr %record, i64 1
  %arguments = load ptr, ptr %arguments_at
  %units_at = getelementptr i64, ptr %record, i64 2
  %units = load i64, ptr %units_at
  %wanted = icmp ult i64 %thread, %parts
  br i1 %wanted, label %choose, label %idle
choose:
  %distance = phi i64 [ 0, %begin ], [ %further, %exhausted ]
  %sum = add i64 %thread, %distance
  %wraps = icmp uge i64 %sum, %parts
  %wrapped = sub i64 %sum, %parts
  %part = select i1 %wraps, i64 %wrapped, i64 %sum
  %own = icmp eq i64 %distance, 0
  br label %next_chunk
next_chunk:
  %chunk = call i64 @take(ptr %state, i64 %part, i64 %step, i1 %own)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %share, label %exhausted
share:
  %before = mul i64 %part, %chunks
  %place = add i64 %before, %chunk
  %below = mul i64 %units, %place
  %from = udiv i64 %below, %total
  %above = add i64 %below, %units
  %to = udiv i64 %above, %total
  %some = icmp ult i64 %from, %to
  br i1 %some, label %work, label %worked
work:
  call void %function(ptr %arguments, ptr %bases, i64 %from, i64 %to, i64 %thread)
  br label %worked
worked:
  %earlier = atomicrmw add ptr %done_at, i64 1 acq_rel
  %now = add i64 %earlier, 1
  %complete = icmp eq i64 %now, %total
  br i1 %complete, label %open, label %next_chunk
open:
  store atomic i64 0, ptr %done_at release, align 8
  %following = add i64 %step, 1
  call void @set_up(ptr %state, i64 %following)
  store atomic i64 %following, ptr %current_at release, align 8
  br label %look
exhausted:
  %further = add i64 %distance, 1
  %others = icmp ult i64 %further, %parts
  br i1 %others, label %choose, label %idle
idle:
  %turn = phi i64 [ 0, %begin ], [ 0, %exhausted ], [ %again, %waited ]
  %now_at = load atomic i64, ptr %current_at acquire, align 8
  %still = icmp eq i64 %now_at, %step
  br i1 %still, label %waited, label %look
waited:
  %again = call i64 @wait(i64 %turn, i64 %spins)
  br label %idle
leave:
  ret void
}

; Put the address of its elements in the place of each of so many numpy arrays, which are bases from the third on.
define internal void @locate(ptr %bases, i64 %arrays) {
entry:
  %some = icmp sgt i64 %arrays, 0
  br i1 %some, label %each, label %done
each:
  %i = phi i64 [ 0, %entry ], [ %next, %each ]
  %place = add i64 %i, $arrays$
  %at = getelementptr i64, ptr %bases, i64 %place
  %array = load ptr, ptr %at
  %field = getelementptr i8, ptr %array, i64 $data$
  %elements = load i64, ptr %field
  store i64 %elements, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %arrays
  br i1 %more, label %each, label %done
done:
  ret void
}

; A program by one thread.
define void @tilewright_run(ptr %steps, i64 %count, ptr %bases, i64 %arrays) {
entry:
  call void @locate(ptr %bases, i64 %arrays)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %following ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %step, label %done
step:
  %offset = mul i64 %i, $words$
  %record = getelementptr i64, ptr %steps, i64 %offset
  %function = load ptr, ptr %record
  %arguments_at = getelementptr i64, ptr %record, i64 1
  %arguments = load ptr, ptr %arguments_at
  %units_at = getelementptr i64, ptr %record, i64 2
  %units = load i64, ptr %units_at
  %some = icmp sgt i64 %units, 0
  br i1 %some, label %work, label %following
work:
  call void %function(ptr %arguments, ptr %bases, i64 0, i64 %units, i64 0)
  br label %following
following:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

; Open a job to the workers.
define internal void @publish(ptr %state, ptr %steps, i64 %count, ptr %bases, i64 %threads, i64 %spins) {
  %job = getelementptr i64, ptr %state, i64 $job$
  store ptr %steps, ptr %job
  %count_at = getelementptr i64, ptr %job, i64 1
  store i64 %count, ptr %count_at
  %bases_at = getelementptr i64, ptr %job, i64 2
  store ptr %bases, ptr %bases_at
  %threads_at = getelementptr i64, ptr %job, i64 3
  store i64 %threads, ptr %threads_at
  %spins_at = getelementptr i64, ptr %job, i64 4
  store i64 %spins, ptr %spins_at
  %current_at = getelementptr i64, ptr %state, i64 $current$
  store atomic i64 0, ptr %current_at release, align 8
  call void @set_up(ptr %state, i64 0)
  %epoch = load atomic i64, ptr %state acquire, align 8
  %next = add i64 %epoch, 1
  %gate_at = getelementptr i64, ptr %state, i64 $gate$
  %opened = shl i64 %next, 16
  store atomic i64 %opened, ptr %gate_at release, align 8
  store atomic i64 %next, ptr %state release, align 8
  ret void
}

; Take part in the job that was opened, and close it.
define internal void @lead(ptr %state) {
entry:
  call void @take_part(ptr %state, i64 0)
  %spins_at = getelementptr i64, ptr %state, i64 add (i64 $job$, i64 4)
  %spins = load i64, ptr %spins_at
  %gate_at = getelementptr i64, ptr %state, i64 $gate$
  %closed = atomicrmw and ptr %gate_at, i64 65535 acq_rel
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %again, %waited ]
  %inside = load atomic i64, ptr %gate_at acquire, align 8
  %some = icmp ne i64 %inside, 0
  br i1 %some, label %waited, label %done
waited:
  %again = call i64 @wait(i64 %turn, i64 %spins)
  br label %look
done:
  ret void
}

; A program by all threads, or by this one alone while somebody else has them.
define void @tilewright_share(
    ptr %state, ptr %steps, i64 %count, ptr %bases, i64 %arrays, i64 %threads, i64 %spins
) {
entry:
  call void @locate(ptr %bases, i64 %arrays)
  %busy_at = getelementptr i64, ptr %state, i64 $busy$
  %pair = cmpxchg ptr %busy_at, i64 0, i64 1 acq_rel acquire
  %free = extractvalue { i64, i1 } %pair, 1
  br i1 %free, label %together, label %alone
together:
  call void @publish(ptr %state, ptr %steps, i64 %count, ptr %bases, i64 %threads, i64 %spins)
  call void @lead(ptr %state)
  store atomic i64 0, ptr %busy_at release, align 8
  ret void
alone:
  call void @tilewright_run(ptr %steps, i64 %count, ptr %bases, i64 0)
  ret void
}

define void @tilewright_stop(ptr %state) {
  %stop_at = getelementptr i64, ptr %state, i64 $stop$
  store atomic i64 1, ptr %stop_at release, align 8
  ret void
}

; Take part in jobs until none came for `spins` turns. The number of the last job seen; -1 to stop.
define i64 @tilewright_work(ptr %state, i64 %thread, i64 %known, i64 %spins) {
entry:
  %gate_at = getelementptr i64, ptr %state, i64 $gate$
  %stop_at = getelementptr i64, ptr %state, i64 $stop$
  br label %wait
wait:
  %seen = phi i64 [ %known, %entry ], [ %seen, %pause ], [ %epoch, %late ], [ %epoch, %enter ]
  %turn = phi i64 [ 0, %entry ], [ %again, %pause ], [ 0, %late ], [ 0, %enter ]
  %stop = load atomic i64, ptr %stop_at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %quit, label %look
quit:
  ret i64 -1
look:
  %epoch = load atomic i64, ptr %state acquire, align 8
  %same = icmp eq i64 %epoch, %seen
  br i1 %same, label %idle, label %knock
idle:
  %patient = icmp ult i64 %turn, %spins
  br i1 %patient, label %pause, label %tired
pause:
  %again = call i64 @wait(i64 %turn, i64 %spins)
  br label %wait
tired:
  ret i64 %seen
knock:
  %gate = load atomic i64, ptr %gate_at acquire, align 8
  %open_for = lshr i64 %gate, 16
  %open = icmp eq i64 %open_for, %epoch
  br i1 %open, label %try, label %late
try:
  %inside = add i64 %gate, 1
  %pair = cmpxchg ptr %gate_at, i64 %gate, i64 %inside acq_rel acquire
  %entered = extractvalue { i64, i1 } %pair, 1
  br i1 %entered, label %enter, label %knock
enter:
  call void @take_part(ptr %state, i64 %thread)
  %before = atomicrmw sub ptr %gate_at, i64 1 acq_rel
  br label %wait
late:
  br label %wait
}
"""
