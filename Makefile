# Korvet's commands, for users (`make run`) and developers (`make test`). They install into .venv, from the lock
# files only, and install nothing again while those stay the same.
#
#   make run ARGS="--workers 2 --listen 0.0.0.0:9092"
#   make test PYTHON=python3.13 ARGS="-k fetch"
#   .venv/bin/pytest tests/log -k fetch           # in one process, for a debugger

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help run lake check test test-ci nightly stress test-kafka-broker test-differential check-deploy lint jepsen test-upgrade duplicates fuzz bench bench-append bench-lake loadtest soak format docs docs-pictures lock core-lock dist bundle releasable release image chart checksums core-built clean FORCE

PYTHON := python3 python3.14 python3.13 python3.12 python3.11
ARGS :=
# Images of Python may set it. Without __pycache__ each process of the tests, a thousand, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# What korvet-core is built from.
CORE := $(sort $(shell find core -name target -prune -o -name tests -prune -o -name fuzz -prune -o -name simulate -prune -o -type f -print))
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

# The first interpreter that is new enough and can make a virtual environment. Each is tried, not only looked for: a
# version manager puts names on PATH that fail when they are called. The locks hold wheels for 3.11 to 3.14, of gevent
# for macOS from 3.12 on.
first_able = $(shell for python in $(PYTHON); do \
	"$$python" -c 'import sys; $(1); sys.exit(not (3, 11 + (sys.platform == "darwin")) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)
no_python = Korvet needs Python 3.11 to 3.14 (on Debian 12 or later: apt-get install python3 python3-venv)
no_cargo = korvet-core was not built: it needs cargo 1.85 and a C compiler (Debian 12: apt-get install cargo-web rustc-web; \
	Debian 13, Ubuntu 26.04, Fedora: cargo; Homebrew: rust)
no_venv = $(1) cannot make virtual environments (on Debian or Ubuntu: apt-get install $(notdir $(1))-venv)

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile | expand -t 26

run: $(VENV)/.run ## install Korvet and start a broker; ARGS are flags of `korvet serve`
	@exec $(BIN)/korvet serve $(ARGS)

lake: $(VENV)/.classes ## install what the lake needs besides: Spark and Delta Lake, which run on Java 17, and pyiceberg

# Each tier runs its parts one after the other, and prints the time of each and one line of counts (tests/tiers).
TIER = $(BIN)/python -m tests.tiers

check: $(VENV)/.lake ## lint, and the tests that start no process, in two minutes; ARGS are flags of pytest
	@$(TIER) check -- $(ARGS)

test: $(VENV)/.lake ## run `make check`, and the tests with processes, in eight minutes; ARGS are flags of pytest
	@$(TIER) test -- $(ARGS)

test-ci: $(VENV)/.lake $(VENV)/.docs ## run what .ci/run adds to `make test`: outages, the lake, Spark, the wheel
	@$(TIER) ci --after test

nightly: $(VENV)/.lake $(VENV)/.stores $(VENV)/.iceberg $(VENV)/.console $(VENV)/.bench $(VENV)/.loadtest $(VENV)/.deploy $(VENV)/.release ## run what CI leaves out, in three hours; ARGS="--part spark", ARGS=--resume
	@$(TIER) nightly $(ARGS)

stress: $(VENV)/.lake ## run each test of `make test` three times beside four busy processes; ARGS=--resume
	@$(TIER) stress $(ARGS)

test-kafka-broker: $(VENV)/.dev ## run Kafka's own broker tests; ARGS="kafka.server.OffsetFetchRequestTest", --part 1/3, --layout dense; needs Java 17 and Maven
	@$(BIN)/python -m tests.jvm.kafka_broker $(ARGS)

test-differential: $(VENV)/.dev ## send the same requests to Apache Kafka and Korvet, and compare the answers; ARGS="--only groups"; needs Java 17 and Maven
	@$(BIN)/python -m tests.differential $(ARGS)

check-deploy: $(VENV)/.deploy ## check deploy/ as `make nightly` does: schemas, rules, the chart by helm, the image by buildah
	@$(TIER) nightly --part "files of deploy"

jepsen: $(VENV)/.dev ## check what clients saw while faults come at random; ARGS="--minutes 30 --setup replicas --layout dense"
	@$(BIN)/python -m tests.jepsen $(ARGS)

test-upgrade: $(VENV)/.dev ## the same while brokers are replaced by a newer build, forward, back, forward; ARGS="--from v0.2.0 --layout dense"
	@$(BIN)/python -m tests.jepsen --upgrade --protocol mixed --work records,transactions,share $(ARGS)

fuzz: $(VENV)/.lake ## send hostile bytes to every decoder and to a worker; ARGS="--minutes 10 --seed 7"
	@$(BIN)/python -m tests.fuzz $(ARGS)

duplicates: $(VENV)/.dev ## look for duplicates of each library's idempotent producer; needs Java 17, Maven and Go
	@$(BIN)/python -m tests.jepsen.duplicates $(ARGS)

bench: $(VENV)/.bench ## compare Korvet with Apache Kafka; ARGS as in loadtest/README.md, --quick for 3 minutes
	@exec $(BIN)/python -m loadtest.bench $(ARGS)

bench-append: $(VENV)/.run ## compare Redis' CPU for appends with plain XADD; ARGS="--server /usr/bin/redis-server --rounds 5"
	@exec $(BIN)/python -m loadtest.append $(ARGS)

bench-lake: $(VENV)/.classes ## compare archiving and pipelines with Spark's Kafka source and Kafka Connect; ARGS="--rounds 5"; needs Java 17 and Maven
	@exec $(BIN)/python -m loadtest.lake.bench $(ARGS)

loadtest: $(VENV)/.loadtest ## load Korvet by locust and real clients, for a minute; ARGS as in loadtest/README.md
	@exec $(BIN)/python -m loadtest.locust $(ARGS)

soak: $(VENV)/.loadtest ## the same for 30 minutes, memory watched; ARGS="--minutes 10" for less
	@exec $(BIN)/python -m loadtest.locust --shape soak --minutes 30 $(ARGS)

lint: $(VENV)/.lake ## run ruff and mypy
	@$(TIER) check --part lint

format: $(VENV)/.dev ## format the code, and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(VENV)/.docs ## build the documentation as a site in build/docs/site, and fail at a warning
	@rm -rf build/docs
	@mkdir -p build/docs/pages
	@cp --parents *.md deploy/*.md deploy/helm/korvet/README.md loadtest/*.md build/docs/pages
	@cp --recursive docs build/docs/pages
	@sed -i '1i ---\nsearch:\n  exclude: true\n---\n' build/docs/pages/CHANGELOG.md
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet --strict
	@echo "==> build/docs/site/index.html"

docs-pictures: $(VENV)/.console ## take the picture of the console and draw that of a request, in headless Chromium
	@$(BIN)/python -m tests.browser.chromium
	@$(BIN)/python -m tests.browser.pictures

COMPILING = --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock" $(ARGS)
COMPILE = $(BIN)/uv pip compile $(COMPILING) --no-emit-package korvet-core pyproject.toml --group build

lock: $(VENV)/.made ## rewrite the lock files from pyproject.toml; ARGS="--upgrade" takes newer versions
	@echo "==> installing uv, which only this target needs"
	@$(PIP) install uv
	@echo "==> requirements.lock"
	@$(COMPILE) --output-file requirements.lock
	@echo "==> requirements-dev.lock"
	@$(COMPILE) --group dev --constraint requirements.lock --output-file requirements-dev.lock
	@echo "==> requirements-lake.lock"
	@$(COMPILE) --extra lake --extra iceberg --extra protobuf --group pipelines --fork-strategy fewest --constraint requirements-dev.lock --output-file requirements-lake.lock
	@echo "==> requirements-deploy.lock"
	@$(COMPILE) --group deploy --fork-strategy fewest --constraint requirements-dev.lock --output-file requirements-deploy.lock
	@echo "==> requirements-stores.lock"
	@$(BIN)/uv pip compile $(COMPILING) --group stores --output-file requirements-stores.lock
	@echo "==> requirements-iceberg.lock"
	@$(BIN)/uv pip compile $(COMPILING) --group iceberg-spark --output-file requirements-iceberg.lock
	@echo "==> requirements-docs.lock"
	@$(BIN)/uv pip compile $(COMPILING) --group docs --fork-strategy fewest --output-file requirements-docs.lock
	@echo "==> requirements-bench.lock"
	@$(COMPILE) --group bench --fork-strategy fewest --constraint requirements-dev.lock --output-file requirements-bench.lock
	@echo "==> requirements-console.lock"
	@$(COMPILE) --group console --constraint requirements-dev.lock --output-file requirements-console.lock
	@echo "==> requirements-loadtest.lock"
	@$(COMPILE) --group loadtest --constraint requirements-dev.lock --output-file requirements-loadtest.lock
	@echo "==> requirements-release.lock"
	@$(BIN)/uv pip compile $(COMPILING) --group release --output-file requirements-release.lock

CORE_SUM = cat $(CORE) | $(BIN)/python -c 'import hashlib, sys; print(hashlib.file_digest(sys.stdin.buffer, "sha256").hexdigest())'
CORE_MANIFEST := --manifest-path core/py/Cargo.toml
# One date, that of files without one: by the commit's, C code would be compiled again at each commit.
MATURIN = SOURCE_DATE_EPOCH=315532800 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/maturin
core-lock: $(VENV)/.made ## write requirements-core.lock: the wheels of korvet-core in dist/, once they are published
	@{ echo "# sources $$($(CORE_SUM))"; echo 'korvet-core==$(VERSION) \'; \
		sha256sum $(DIST)/korvet_core-*.whl | sed 's/^\([0-9a-f]*\).*/    --hash=sha256:\1/;$$!s/$$/ \\/'; } > requirements-core.lock

DIST := dist
BUNDLED := requirements.lock
# Archives are dated by the commit, or in an unpacked source archive as that is: two builds of one give the same bytes.
dist bundle release image: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat --format=%Y pyproject.toml)

dist: $(VENV)/.run ## build wheels and source archives, of Korvet and of korvet-core, into dist/
	@rm -rf $(DIST)
	@$(BIN)/python -m hatchling build --directory $(DIST)
	@$(MATURIN) sdist $(CORE_MANIFEST) --out $(DIST)
	@$(MATURIN) build $(CORE_MANIFEST) --release --locked --out $(DIST)

# pyspark, where BUNDLED is the lock of the lake, is built here as in $(VENV)/.lake; all else comes as a wheel. Not from
# pip's cache: a pyspark in there was built under another date.
bundle: dist $(if $(findstring lake,$(BUNDLED)),$(VENV)/.dev) ## build an archive that installs without network on machines such as this; BUNDLED=requirements-lake.lock adds the lake
	@name=korvet-$$($(BIN)/python -c 'from sys import version_info as v; import sysconfig, korvet; \
		print(f"{korvet.__version__}-python{v[0]}.{v[1]}-{sysconfig.get_platform()}")'); \
	mkdir $(DIST)/$$name $(DIST)/$$name/wheels \
	&& $(PIP) wheel --no-cache-dir --require-hashes --no-deps --no-build-isolation --only-binary :all: --no-binary pyspark \
		--requirement $(BUNDLED) --wheel-dir $(DIST)/$$name/wheels \
	&& rm -f $(DIST)/$$name/wheels/maturin-* && cp $(DIST)/*.whl $(DIST)/$$name/wheels \
	&& cp -r --parents *.md LICENSE deploy docs loadtest/README.md $(DIST)/$$name \
	&& tar --create --file $(DIST)/$$name.tar.gz --use-compress-program "gzip --no-name" --directory $(DIST) --sort=name \
		--mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX $$name \
	&& rm -r $(DIST)/$$name && echo $(DIST)/$$name.tar.gz

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' core/Cargo.toml)
IMAGE = $(DIST)/korvet-$(VERSION)-image.tar
# The first engine that answers: Docker's command alone, without its daemon, builds nothing.
ENGINE = $(shell for engine in docker podman buildah; do $$engine info >/dev/null 2>&1 && { echo $$engine; break; }; done)
HELM = $(shell command -v helm)
no_image = no image: none of docker, podman and buildah answers here
no_chart = no chart: helm is not on PATH

releasable:
	@test -z "$$(git status --porcelain)" || { git status --short; echo "not released: commit or remove these files"; exit 1; }
	@for tag in $$(git tag --points-at HEAD --list 'v*'); do test $$tag = v$(VERSION) \
		|| { echo "not released: HEAD is tagged $$tag, and core/Cargo.toml has version $(VERSION)"; exit 1; }; done
	@grep --quiet '^## $(VERSION) (20' CHANGELOG.md || { echo "not released: CHANGELOG.md has no section $(VERSION) with a date"; exit 1; }

# The bill of materials describes what requirements.lock and the wheel install, and the crates that the core links. Its
# tool knows no dynamic version.
release: releasable dist $(VENV)/.release ## build all that a release has into dist/: archives, bill of materials, image, chart, checksums
	@rm -rf build/release
	@$(BIN)/python -m venv --without-pip build/release
	@$(PIP) --python build/release/bin/python install --require-hashes --only-binary :all: --requirement requirements.lock
	@$(PIP) --python build/release/bin/python install --no-index --no-deps --find-links $(DIST) korvet==$(VERSION) korvet-core==$(VERSION)
	@sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/release/pyproject.toml
	@$(VENV)/release/bin/cyclonedx-py environment build/release --pyproject build/release/pyproject.toml --output-reproducible \
		--output-file $(DIST)/korvet-$(VERSION).cdx.json
	@$(BIN)/python -m tests.support.crates $(DIST)/korvet-$(VERSION).cdx.json
	@$(if $(ENGINE),$(MAKE) image,echo "==> $(no_image)")
	@$(if $(HELM),$(MAKE) chart,echo "==> $(no_chart)")
	@$(MAKE) checksums
	@cat $(DIST)/SHA256SUMS

image: ## build the image korvet:VERSION and save it into dist/; needs docker, podman or buildah
	$(if $(ENGINE),,$(error $(no_image)))
	@mkdir -p $(DIST) && rm -f $(IMAGE) $(IMAGE).gz
	@$(ENGINE) build $(if $(filter buildah,$(ENGINE)),--format docker) --file deploy/docker/Dockerfile --target broker --build-arg SOURCE_DATE_EPOCH \
		--build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null) --tag korvet:$(VERSION) .
	@$(if $(filter buildah,$(ENGINE)),buildah push korvet:$(VERSION) docker-archive:$(IMAGE):korvet:$(VERSION),$(ENGINE) save --output $(IMAGE) korvet:$(VERSION))
	@gzip --no-name $(IMAGE)

chart: ## package the Helm chart into dist/; needs helm
	$(if $(HELM),,$(error $(no_chart)))
	@helm package deploy/helm/korvet --version $(VERSION) --app-version $(VERSION) --destination $(DIST)

checksums:
	@cd $(DIST) && sha256sum korvet[-_]* > SHA256SUMS

clean: ## remove what the other targets made, but no data
	@rm -rf $(VENV) build dist core/target .hypothesis .mypy_cache .pytest_cache .ruff_cache loadtest/bench/.cache tests/jepsen/programs/.cache tests/jvm/.cache tests/jvm/spark/.cache tests/jvm/iceberg/.cache tests/browser/.cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp each for the environment, for what Korvet needs, and for what its tests need. The environment is made again
# when its interpreter has gone, as after an upgrade of the system.
$(VENV)/.made: $(shell test -x $(BIN)/python || echo FORCE)
	$(if $(call first_able,pass),,$(error $(no_python)))
	$(if $(call first_able,import ensurepip),,$(error $(call no_venv,$(call first_able,pass))))
	@echo "==> making $(VENV) with $$($(call first_able,import ensurepip) --version)"
	@$(call first_able,import ensurepip) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.locked: $(VENV)/.made requirements.lock
	@echo "==> installing what Korvet needs (requirements.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements.lock
	@touch $@

# The index has a wheel of these sources if requirements-core.lock has their sum; it has the hashes of that wheel too.
$(VENV)/.core: $(CORE) | $(VENV)/.locked
	@sum="# sources $$($(CORE_SUM))"; grep --quiet --line-regexp --fixed-strings "$$sum" requirements-core.lock 2>/dev/null \
		&& $(PIP) install --require-hashes --only-binary :all: --no-deps --force-reinstall --requirement requirements-core.lock \
		|| $(MAKE) core-built
	@touch $@

# maturin's own way to get Rust works by pip only, and needs packages that no lock has.
core-built:
	@rm -rf build/core && mkdir -p build/core
	@if command -v cargo >/dev/null; then \
		echo "==> building korvet-core by cargo, once: about a minute"; \
		$(MATURIN) build $(CORE_MANIFEST) --release --locked --auditwheel skip --out build/core; \
	else \
		echo "==> building korvet-core by Rust that is fetched, for want of cargo: some minutes, 700 MB in ~/.cache"; \
		$(PIP) wheel --no-deps --wheel-dir build/core ./core >build/core/log 2>&1; \
	fi || { echo "$(no_cargo)"; test ! -e build/core/log || echo "build/core/log says how fetching Rust failed"; exit 1; }
	@$(PIP) install --no-index --no-deps --force-reinstall build/core/*.whl

$(VENV)/.run: $(VENV)/.locked pyproject.toml core/Cargo.toml | $(VENV)/.core
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.lock
	@echo "==> installing what the tests need (requirements-dev.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements-dev.lock
	@touch $@

# pyspark is built here, by what the line above has installed.
$(VENV)/.lake: $(VENV)/.dev requirements-lake.lock
	@echo "==> installing what the lake needs (requirements-lake.lock)"
	@$(PIP) install --require-hashes --no-build-isolation --only-binary :all: --no-binary pyspark \
		--requirement requirements-lake.lock
	@touch $@

# Spark starts without it too, so no Java yet is no failure.
$(VENV)/.classes: $(VENV)/.lake
	@echo "==> letting Java write down Spark's classes, which halves the start of Spark"
	@$(BIN)/python -m korvet.spark.class_archive && touch $@ || true

# An environment of its own: the store is a program, and what it needs is not what Spark and Delta Lake need.
$(VENV)/.stores: $(VENV)/.made requirements-stores.lock
	@echo "==> installing an object store for tests (requirements-stores.lock)"
	@$(BIN)/python -m venv --clear $(VENV)/stores
	@$(VENV)/stores/bin/python -m pip --disable-pip-version-check --no-input --quiet install --require-hashes \
		--only-binary :all: --requirement requirements-stores.lock
	@touch $@

# A directory before the environment's own packages: it has another pyspark.
$(VENV)/.iceberg: $(VENV)/.lake requirements-iceberg.lock
	@echo "==> installing Spark as Iceberg knows it (requirements-iceberg.lock)"
	@rm -rf $(VENV)/iceberg
	@$(PIP) install --require-hashes --no-build-isolation --only-binary :all: --no-binary pyspark --target $(VENV)/iceberg \
		--requirement requirements-iceberg.lock
	@touch $@

$(VENV)/.docs: $(VENV)/.made requirements-docs.lock
	@echo "==> installing what builds the site (requirements-docs.lock)"
	@$(BIN)/python -m venv --clear $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip --disable-pip-version-check --no-input --quiet install --require-hashes \
		--only-binary :all: --requirement requirements-docs.lock
	@touch $@

$(VENV)/.release: $(VENV)/.run requirements-release.lock
	@echo "==> installing what writes a bill of materials (requirements-release.lock)"
	@$(BIN)/python -m venv --clear $(VENV)/release
	@$(VENV)/release/bin/python -m pip --disable-pip-version-check --no-input --quiet install --require-hashes \
		--only-binary :all: --requirement requirements-release.lock
	@touch $@

$(VENV)/.bench: $(VENV)/.run requirements-bench.lock
	@echo "==> installing what the benchmark needs (requirements-bench.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements-bench.lock
	@touch $@

$(VENV)/.deploy: $(VENV)/.dev requirements-deploy.lock
	@echo "==> installing what the checks of deploy/ need (requirements-deploy.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements-deploy.lock
	@touch $@

$(VENV)/.console: $(VENV)/.dev requirements-console.lock
	@echo "==> installing what drives the browser (requirements-console.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements-console.lock
	@touch $@

$(VENV)/.loadtest: $(VENV)/.run requirements-loadtest.lock
	@echo "==> installing what the load tests need (requirements-loadtest.lock)"
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements-loadtest.lock
	@touch $@

FORCE:
