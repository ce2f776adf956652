#!/usr/bin/env python3
"""Mutation testing: puts small faults into the sources, one at a time, and checks that the tests notice each of them.

    scripts/mutate.py                                  every file of the table below
    scripts/mutate.py --each 2 layers/gelu_cpu.h       two mutants of this file
    scripts/mutate.py --only layers/gelu_cpu.h:3fa2c1  one mutant again, by the name that a run printed
    scripts/mutate.py --list layers/gelu_cpu.h         the mutants that a run would take first

A mutant is one line changed in one place. Its name is made of the line's text and not of its number, so that it stays
valid while the file around it changes. The order in which mutants are taken depends on these names and on --seed alone.
Mutants are built and tested in copies of the tree in a temporary directory. A mutant is killed if a test fails, crashes
or takes too long. One that does not build, or compiles to the same object code, is replaced by the next. Survivors that
dev/test/equivalent_mutants.txt explains are not run. The exit status is 1 if any other mutant survives, or if an
explanation is of a mutant that the sources no longer have.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = 'build/native'
FLAGS = '-O0 -w'  # calls that are not inlined are quick to compile
COMMON = ('gtest/gtest.h', 'omp.h', 'algorithm', 'array', 'bit', 'cmath', 'cstring', 'filesystem', 'functional', 'limits',
          'map', 'memory', 'numeric', 'random', 'string', 'vector')
EXPLAINED = 'dev/test/equivalent_mutants.txt'


@dataclass(frozen=True)
class Run:
    """A test program, which of its tests to run, and the objects to rebuild besides (or, `alone`, instead of) its own."""
    test: str
    filter: str = '*'
    units: tuple = ()
    alone: bool = False

    @property
    def objects(self):
        own = () if self.alone else (f'{BUILD}/dev/test/{self.test}.o',)
        return tuple(f'{BUILD}/{unit}.o' for unit in self.units) + own


GEMM = ('device/cpu/gemm/matmul',)
ATTENTION = ('layers/attention_cpu',)
SLOW_MATMUL = 'Matmul.ManyBlocks:Matmul.BitsDoNot*:*PastTheCaches*:*MakesItsInputAgain*'
MATMUL = [Run('layers/matmul_test', '-' + SLOW_MATMUL, GEMM, alone=True),
          Run('device/matmul_bf16_test', '-*Kernels*', GEMM, alone=True),
          Run('layers/matmul_test', SLOW_MATMUL, GEMM, alone=True)]
# One test calls some of the kernels itself, so its own object is rebuilt too. Only Muon has lower parts.
KERNELS = MATMUL + [Run('layers/attention_test', '*', ATTENTION, alone=True),
                    Run('layers/matmul_test', '-' + SLOW_MATMUL), Run('device/matmul_bf16_test', '*Kernels*'),
                    Run('layers/muon_test', '*Part*', GEMM, alone=True)]
WEIGHTS = [Run('layers/stored_weights_test', '*', GEMM), Run('layers/matmul_test', '-' + SLOW_MATMUL, GEMM, alone=True)]
READING = ('io/model/checkpoint_reading',)

# For each source: the number of mutants, and the tests that should notice them, the cheapest first.
TABLE = {
    'device/cpu/gemm/gemm.h': (10, KERNELS),
    'device/cpu/gemm/packing.h': (8, KERNELS),
    'device/cpu/gemm/sizes.h': (4, KERNELS),
    'device/cpu/gemm/tile.h': (6, KERNELS),
    'device/cpu/gemm/matmul.cpp': (16, MATMUL + [Run('layers/classifier_test', '*', GEMM, alone=True)]),
    'device/cpu/gemm/few_rows.h': (8, WEIGHTS),
    'device/cpu/gemm/few_rows_int8.h': (8, WEIGHTS),
    'device/cpu/simd.h': (8, [Run('device/simd_test')]),
    'device/cpu/weight_rows.h': (6, WEIGHTS),
    'layers/matmul_cpu.h': (10, [Run('layers/matmul_test', '-' + SLOW_MATMUL),
                                Run('layers/matmul_test', '*PastTheCaches*:*MakesItsInputAgain*')]),
    'device/cpu/gemm/gemm_amx.h': (10, KERNELS),
    'device/cpu/gemm/pack_amx.h': (10, KERNELS),
    'layers/attention/amx.h': (4, [Run('layers/attention_test', '*', ATTENTION, alone=True)]),
    'layers/attention_cpu.cpp': (20, [Run('layers/attention_test', '*', ATTENTION, alone=True)]),
    'layers/attention/products_cpu.h': (12, [Run('layers/attention_test', '*', ATTENTION, alone=True)]),
    'layers/cached_attention_cpu.h': (8, [Run('layers/cached_attention_test')]),
    'layers/dropout_cpu.h': (6, [Run('layers/dropout_test')]),
    'device/cpu/philox.h': (8, [Run('layers/dropout_test')]),
    'layers/layernorm_cpu.h': (14, [Run('layers/layernorm_test'), Run('layers/layernorm_properties_test')]),
    'layers/rmsnorm_cpu.h': (10, [Run('layers/rmsnorm_test')]),
    'layers/norm_backward_cpu.h': (12, [Run('layers/rmsnorm_test'), Run('layers/layernorm_test')]),
    'device/cpu/rows.h': (18, [Run('layers/global_norm_test'), Run('layers/rmsnorm_test'), Run('layers/layernorm_test'),
                               Run('layers/layernorm_properties_test')]),
    'layers/muon_cpu.h': (14, [Run('layers/muon_test')]),
    'layers/adamw_cpu.h': (8, [Run('layers/adamw_test')]),
    'layers/classifier_cpu.h': (12, [Run('layers/classifier_test')]),
    'gpt2_sampled_softmax.h': (8, [Run('model/sampled_softmax_test')]),
    'layers/gelu_cpu.h': (8, [Run('layers/gelu_test')]),
    'layers/global_norm_cpu.h': (5, [Run('layers/global_norm_test')]),
    'layers/embedding_cpu.h': (8, [Run('layers/embedding_test')]),
    'gpt2.h': (14, [Run('model/model_test'), Run('model/sampled_softmax_test'),
                       Run('cuda/model_test', '*HostsCopies*:*Resumed*')]),
    'io/data/batch_sampler.cpp': (14, [Run('io/batch_sampler_test', '*', ('io/data/batch_sampler',), alone=True),
                                  Run('program/training_test', 'Batches*', ('io/data/batch_sampler',), alone=True)]),
    'io/text/bpe_trainer.cpp': (8, [Run('io/bpe_trainer_test', '*', ('io/text/bpe_trainer',), alone=True),
                                    Run('io/superwords_test', '*', ('io/text/bpe_trainer',), alone=True)]),
    'io/text/hash_index.h': (8, [Run('io/tokenizer_test', '-*LinearTime*'),
                                Run('io/bpe_trainer_test', '*', ('io/text/bpe_trainer', 'io/text/word_counts'), alone=True)]),
    'io/text/byte_pair.cpp': (8, [Run('io/tokenizer_test', '-*LinearTime*', ('io/text/byte_pair',), alone=True),
                                  Run('io/superwords_test', '*', ('io/text/byte_pair',), alone=True)]),
    'io/text/superwords.cpp': (10, [Run('io/superwords_test', '*', ('io/text/superwords',), alone=True)]),
    'io/model/checkpoint_reading.cpp': (14, [Run('io/checkpoint_test', '-*SurviveBeingKilled*:*FlippedBit*', READING, alone=True),
                                       Run('io/checkpoint_verify_test', '*', READING, alone=True)]),
    'io/text/text_groups.cpp': (10, [Run('io/dataset_test', '-*OverFourGigabytes*', ('io/text/text_groups',), alone=True)]),
    'program/pair_embedding.cpp': (8, [Run('program/pair_embedding_test', '*', ('program/pair_embedding',), alone=True)]),
    'program/schedule.h': (8, [Run('program/training_test', 'Schedules*')]),
    'program/text_use.h': (6, [Run('program/time_plan_test', 'TextUse*')]),
    'program/outliers.h': (6, [Run('program/training_test', 'Outliers*')]),
    'layers/layernorm.cuh': (4, [Run('cuda/layernorm_test', '-*WithoutEach*')]),
    'layers/attention/plain.cuh': (2, [Run('cuda/attention_test', '-*TheSameBits*')]),
}

# What no other CPU compiles.
FOR_AMX = {'device/cpu/gemm/gemm_amx.h', 'device/cpu/gemm/pack_amx.h', 'layers/attention/amx.h'}

# Statements that only affect speed, and those without any effect of their own.
LEFT_OUT = re.compile(r'[Pp]refetch|\bof_[ab]\b|\bTimed\b|\bflops\b|[Pp]rofile|static_assert|\btemplate <|^\s*using\b')
LEFT_OUT_CLASS = re.compile(r'^class Prefetch')

SWAPS = [(' + ', ' - '), (' - ', ' + '), (' * ', ' + '), (' / ', ' * '), (' % ', ' / '), (' < ', ' <= '),
         (' <= ', ' < '), (' > ', ' >= '), (' >= ', ' > '), (' == ', ' != '), (' != ', ' == '), (' && ', ' || '),
         (' || ', ' && '), (' += ', ' = '), (' -= ', ' += '), (' *= ', ' = '), ('min(', 'max('), ('max(', 'min('),
         ('min<', 'max<'), ('max<', 'min<'), ('Store::add', 'Store::set'), ('Store::set', 'Store::add'),
         ('k_first', 'k_last'), ('k_last', 'k_first'), ('true', 'false'), ('false', 'true')]
INTEGER = re.compile(r'(?<![\w.])\d+(?![\w.])')
REAL = re.compile(r'(?<![\w.])\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)f?\b')
INDEX = re.compile(r'(?<=\w)\[([^\[\]]+)\]')
DECLARED = re.compile(r'\b(vfloat|vint|vlong|float|double|int|int\d+_t|uint\d+_t|size_t|bool|T|S)\b[ \w,*&\[\]]*$')
BARRIER = re.compile(r'^#pragma omp (barrier|for\b)|^__sync')
NOT = re.compile(r'(?<![\w)])!(?=[\w(])')
STATEMENT = re.compile(r'^\s*(?!return\b|if\b|for\b|else\b|delete\b)(continue|break|\*?[\w:.]+(<.*?>)?(\[.*?\]|->\w+)*'
                       r'( [-+*/]?= .+|\(.*\)|\+\+|--))(?=;$)|(?<=: )return\b')


def code_of(line):
    """The line with strings and comments blanked out, so that columns stay the same."""
    blank = lambda match: match[0][0] + ' ' * (len(match[0]) - 2) + match[0][-1]
    line = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'', blank, line)
    return re.sub(r'//.*', lambda match: ' ' * len(match[0]), line).rstrip()


def balanced(text):
    depth = 0
    for c in text:
        depth += c in '([{'
        depth -= c in ')]}'
        if depth < 0:
            return False
    return depth == 0


def changes(code, line):
    """(begin, end, replacement) for each mutant of a line, whose code is `code`."""
    if code.lstrip().startswith('#'):
        if 'omp barrier' in code:
            yield 0, len(code), ' '
        if re.search(r'omp for\b', code):
            yield len(code), len(code), ' nowait'
        return
    for old, new in SWAPS:
        for match in re.finditer(r'(?<![\w])' * old[0].isalpha() + re.escape(old) + r'(?!\w)' * old[-1].isalpha(), code):
            yield match.start(), match.end(), new
    for match in INTEGER.finditer(code):
        yield match.start(), match.end(), {'0': '1', '1': '2'}.get(match[0], str(int(match[0]) - 1))
    for match in REAL.finditer(code):
        zero = float(match[0].rstrip('f')) == 0
        yield match.start(), match.end(), '1.0f' if zero else f'({match[0]} * 1.01{"f" * match[0].endswith("f")})'
    for match in INDEX.finditer(code):
        if not DECLARED.search(code[:match.start()]):
            yield match.start(), match.end(), f'[{line[match.start(1):match.end(1)]} + 1]'
    for match in NOT.finditer(code):
        yield match.start(), match.end(), ''
    for match in re.finditer(r'\bif (?:constexpr )?\(', code):
        for end in range(match.end(), len(code)):
            if code[end] == ')' and balanced(code[match.end():end]):
                yield match.end(), end, f'!({line[match.end():end]})'
                break
    match = STATEMENT.match(code)
    if match and balanced(match[0]):
        yield match.start(1), match.end(1), ' '


@dataclass
class Mutant:
    file: str
    line: int  # from 0
    begin: int
    end: int
    new: str
    before: str
    after: str
    name: str
    result: str = ''  # killed, survived, same code, does not build, explained
    by: str = ''


def mutants_of(file, seed):
    """All mutants of a file in the order in which they are taken: barriers, then one of each line."""
    lines = (ROOT / file).read_text().split('\n')
    codes = [code_of(line) for line in lines]
    found, seen, statement, inside = [], {}, [], False
    for number, code in enumerate(codes):
        inside = bool(LEFT_OUT_CLASS.match(code)) or inside and code != '};'
        starts = not statement
        statement.append(number)
        if code.strip() and not code.endswith((';', '{', '}', ':', '>')) and not code.lstrip().startswith('#'):
            continue
        text = '\n'.join(codes[i] for i in statement)
        for i in statement if not inside and not LEFT_OUT.search(text) else []:
            text = lines[i].strip()
            seen[text] = seen.get(text, 0) + 1
            for begin, end, new in changes(codes[i], lines[i]):
                if new == ' ' and (i != statement[0] or not starts):
                    continue  # the end of a statement
                after = lines[i][:begin] + new + lines[i][end:]
                identity = '\0'.join([file, text, str(seen[text]), after.strip(), str(begin - len(lines[i]))])
                digest = hashlib.sha1(identity.encode()).hexdigest()[:6]
                found.append(Mutant(file, i, begin, end, new, text, after.strip() or ';', f'{file}:{digest}'))
        statement = []
    order = lambda m: (not BARRIER.search(m.before), hashlib.sha1(f'{seed} {m.name}'.encode()).hexdigest())
    of_line, rank = {}, {}
    for m in sorted(found, key=order):
        rank[m.name] = of_line[m.line] = of_line.get(m.line, -1) + 1
    return sorted(found, key=lambda m: (rank[m.name], order(m)))


def has_amx():
    return 'amx_bf16' in pathlib.Path('/proc/cpuinfo').read_text()


def explained_names():
    """The names of the mutants that the committed list explains. Ends the program if the sources no longer have one."""
    names = re.findall(r'^(\S+:[0-9a-f]{6})$', (ROOT / EXPLAINED).read_text(), re.M)
    files = {name.split(':')[0] for name in names}
    there = {m.name for file in files if (ROOT / file).is_file() for m in mutants_of(file, '1')}
    if stale := [name for name in names if name not in there]:
        sys.exit(f'{EXPLAINED}: the sources no longer have {", ".join(stale)}')
    return names


class Tree:
    """A copy of the working tree with its objects, in which mutants are built and tested."""

    def __init__(self, path):
        self.path = path

    def copy_sources(self):
        names = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=ROOT,
                               check=True, capture_output=True, text=True).stdout.split('\0')
        objects = [str(p.relative_to(ROOT)) for p in (ROOT / BUILD).rglob('*')
                   if p.suffix in ('.o', '.d', '.gch')]
        for name in names + objects:
            if name and (ROOT / name).is_file():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.path / name)
        if (ROOT / 'data').is_dir():
            (self.path / 'data').symlink_to(ROOT / 'data')

    def make(self, flags, targets, rebuilt=None):
        """Builds targets. With `rebuilt`, rebuilds only these objects."""
        old = [] if rebuilt is None else [f'-o{o}' for o in self.objects if o not in rebuilt]
        env = {k: v for k, v in os.environ.items() if k not in ('MAKEFLAGS', 'MFLAGS')} | {'MAKELEVEL': '1'}
        return subprocess.run(['make', '-s', *old, f'CXXFLAGS={flags}', *targets], cwd=self.path, env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def build(self, run):
        """The test of `run`, with its objects rebuilt from the current sources."""
        flags = [] if run.test.startswith('cuda/') else ['OPT=']  # the emulator needs its own
        return self.make(FLAGS + f' -include {self.common}', [*flags, f'{BUILD}/test/{run.test}'], run.objects)

    def test(self, run, cpu_limit=0):
        """Returns (the failure or '', CPU seconds)."""
        temporary = self.path / 'tmp'
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        env = os.environ | {'GTEST_FAIL_FAST': '1', 'GTEST_THROW_ON_FAILURE': '1', 'GTEST_FILTER': run.filter, 'TMPDIR': str(temporary)}

        def limit():
            os.setsid()
            if cpu_limit:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit), int(cpu_limit)))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, 1 << 33))

        with open(self.path / 'log', 'w') as out:
            child = subprocess.Popen([f'{BUILD}/test/{run.test}'], cwd=self.path, env=env, stdout=out,
                                     stderr=subprocess.STDOUT, preexec_fn=limit)
        deadline = time.monotonic() + (20 * cpu_limit if cpu_limit else 600)  # for a test that hangs; includes waiting for other load
        while True:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.02)
        child.returncode = os.waitstatus_to_exitcode(status)
        text = self.log()
        last = (re.findall(r'^\[  FAILED  \] ([\w/.]+)|^\[ RUN      \] ([\w/.]+)', text, re.M) or [('', '')])[-1]
        what = ''.join(last) if text else ''
        if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            what += ' (takes too long)'
        elif child.returncode < 0 and ': Failure\n' not in text:
            what += f' ({signal.Signals(-child.returncode).name})'
        return (what or 'exit status') if child.returncode else '', used.ru_utime + used.ru_stime

    def digests(self, run):
        return [hashlib.sha1((self.path / o).read_bytes()).hexdigest() for o in run.objects]

    def restore(self, objects):
        """Restores the objects from before a mutant."""
        for name in objects:
            path = self.path / name
            if not path.exists() or path.stat().st_mtime_ns != (self.saved / name).stat().st_mtime_ns:
                shutil.copy2(self.saved / name, path)

    def log(self):
        return (self.path / 'log').read_text(errors='replace')


class Runner:
    def __init__(self, directory, files, jobs):
        self.trees = queue.Queue()
        runs = [run for file in files for run in TABLE[file][1]]
        self.unchanged = {}
        self.locks = {run: threading.Lock() for run in runs}
        first = Tree(pathlib.Path(directory) / '0')
        first.path.mkdir()
        first.copy_sources()
        done = first.make('-O3', ['-j', str(jobs), *sorted({f'{BUILD}/test/{run.test}' for run in runs})])
        if done.returncode:
            sys.exit(done.stdout)
        Tree.objects = [str(p.relative_to(first.path)) for p in (first.path / BUILD).rglob('*.o')]
        Tree.saved = pathlib.Path(directory) / 'saved'
        for name in sorted({o for run in runs for o in run.objects}):
            (Tree.saved / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(first.path / name, Tree.saved / name)
        # Precompiles the headers that take most of the time. GCC ignores them if the flags do not fit.
        Tree.common = pathlib.Path(directory) / 'common.h'
        Tree.common.write_text(''.join(f'#include <{name}>\n' for name in COMMON))
        compiler = first.make(FLAGS, ['--eval=flags: ; @echo $(CXX) $(FLAGS) -march=$(ARCH)', 'flags']).stdout.split()
        subprocess.run([*compiler, '-x', 'c++-header', Tree.common, '-o', f'{Tree.common}.gch'], cwd=first.path,
                       check=True)
        self.trees.put(first)
        for i in range(1, jobs):
            shutil.copytree(first.path, pathlib.Path(directory) / str(i), symlinks=True)
            self.trees.put(Tree(pathlib.Path(directory) / str(i)))

    def measure(self, tree, run):
        """Runs a test on the unchanged sources; mutants are compared with its objects and CPU time."""
        with self.locks[run]:
            if run not in self.unchanged:
                done = tree.build(run)
                failed, seconds = tree.test(run) if done.returncode == 0 else (done.stdout, 0)
                if failed:
                    raise RuntimeError(f'{run.test} fails without a mutant: {failed}\n{tree.log()}')
                self.unchanged[run] = tree.digests(run), seconds
        return self.unchanged[run]

    def judge(self, mutant):
        tree = self.trees.get()
        file = tree.path / mutant.file
        original, stat = file.read_text(), file.stat()
        lines = original.split('\n')
        line = lines[mutant.line]
        lines[mutant.line] = line[:mutant.begin] + mutant.new + line[mutant.end:]
        try:
            mutant.result = 'same code'
            for run in TABLE[mutant.file][1]:
                file.write_text(original)
                digests, seconds = self.measure(tree, run)
                file.write_text('\n'.join(lines))
                if tree.build(run).returncode:
                    mutant.result = 'does not build'
                    break
                if tree.digests(run) == digests:
                    continue  # the test has not changed
                mutant.result = 'survived'
                failed, _ = tree.test(run, 5 + 5 * seconds)
                if failed:
                    mutant.result, mutant.by = 'killed', f'{run.test} {failed}'
                    break
        finally:
            file.write_text(original)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            tree.restore({o for run in TABLE[mutant.file][1] for o in run.objects})
            self.trees.put(tree)
        show(mutant)


def show(mutant):
    print(f'{mutant.result:14} {mutant.name} line {mutant.line + 1}: {mutant.before}  →  {mutant.after}'
          + (f'  [{mutant.by.strip()}]' if mutant.by else ''), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='*', help='sources; the default is the whole table')
    parser.add_argument('--each', type=int, help='mutants of each file; the default stands in the table')
    parser.add_argument('--only', action='append', help='a mutant by its name; may be repeated')
    parser.add_argument('--seed', default='1', help='another one takes other mutants')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='mutants at once')
    parser.add_argument('--log', help='adds the results to this file, and takes from it those that are there already')
    parser.add_argument('--list', action='store_true', help='print mutants and stop')
    args = parser.parse_args()
    files = args.files or sorted({name.split(':')[0] for name in args.only or []}) or list(TABLE)
    unknown = [file for file in files if file not in TABLE]
    if unknown:
        parser.error(f'{unknown[0]} is not in the table of scripts/mutate.py')
    skipped = [file for file in files if file in FOR_AMX and not has_amx()]
    for file in skipped:
        print(f'{file}: skipped, as this CPU has no AMX')
    files = [file for file in files if file not in skipped]

    accepted = explained_names()
    waiting, missing = {}, {}
    for file in files:
        waiting[file] = mutants_of(file, args.seed)
        missing[file] = TABLE[file][0] if args.each is None else args.each
        if args.only:
            waiting[file] = [m for m in waiting[file] if m.name in args.only]
            missing[file] = len(waiting[file])
    if args.list:
        for file in files:
            for m in waiting[file]:
                print(f'{m.name} line {m.line + 1}: {m.before}  →  {m.after}')
        return 0

    known = {}
    if args.log and os.path.exists(args.log):
        for line in open(args.log):
            known[line.split()[0]] = line.rstrip('\n').split('\t')[1:3]

    def judge(mutant):
        runner.judge(mutant)
        if args.log:
            with open(args.log, 'a') as log:
                log.write(f'{mutant.name}\t{mutant.result}\t{mutant.by}\t{mutant.before}  →  {mutant.after}\n')

    done = []
    with tempfile.TemporaryDirectory(prefix='mutants-') as directory:
        runner = Runner(directory, files, args.jobs)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            while True:
                batch = []
                for file in files:
                    batch += enumerate(waiting[file][:missing[file]])
                    del waiting[file][:missing[file]]
                batch = [m for _, m in sorted(batch, key=lambda item: item[0])]  # of all files in turn
                if not batch:
                    break
                for m in batch:
                    accept = m.name in accepted and not args.only
                    m.result, m.by = ('explained', '') if accept else known.get(m.name, ('', ''))
                list(pool.map(judge, [m for m in batch if not m.result]))
                for m in batch:
                    missing[m.file] -= m.result in ('killed', 'survived', 'explained')
                done += batch

    count = lambda result, file=None: sum(m.result == result and file in (None, m.file) for m in done)
    print(f'\n{"":28} mutants  killed  explained  survived  did not build  same code')
    for file in files:
        numbers = [count(result, file) for result in ('killed', 'explained', 'survived', 'does not build', 'same code')]
        print(f'{file:28} {sum(numbers[:3]):7} {numbers[0]:7} {numbers[1]:10} {numbers[2]:9} {numbers[3]:14} {numbers[4]:10}')
    print()
    for m in done:
        if m.result == 'survived':
            show(m)
    killed, explained, survived = count('killed'), count('explained'), count('survived')
    print(f'{killed + explained + survived} mutants, {killed} killed, {survived} survived, {explained} explained, '
          f'{count("does not build")} did not build, {count("same code")} compiled to the same code')
    print(f'{killed + explained} passed, {survived} failed' + (f', {len(skipped)} skipped' if skipped else ''))
    return 1 if survived or not (killed or skipped) else 0


if __name__ == '__main__':
    sys.exit(main())
