"""Everyday commands: those that an agent runs in a project without asking, from over three hundred programs."""

from __future__ import annotations

from gradproof.gate.made.grammar import lines

SHORT = lines(r"""
ls ⟨-la¦-l¦-1¦-lah¦-lt¦-R¦-d */⟩ ‹dir›
⟨tree -L ‹n1›¦exa -l¦eza --tree¦lsd -l⟩ ‹dir›
⟨cat¦bat¦less¦more¦tac¦nl⟩ ‹file›
⟨head¦tail⟩ -n ‹n2› ‹file›
tail -f ‹log›
wc -⟨l¦c¦w⟩ ‹file›
sort ⟨-u¦-n¦-r¦-k2,2¦-t, -k‹n1›⟩ ‹data› | uniq ⟨-c¦-d¦⟩
cut -d⟨,¦:¦' '⟩ -f‹n1› ‹data› | sort | uniq -c | sort -rn | head
paste -d, ‹data› ‹data›
tr ⟨a-z A-Z¦-d '\r'¦-s ' '⟩ < ‹data› > ‹tmp›
⟨rev¦fold -w 80¦column -t -s,¦expand¦nl -ba⟩ ‹data›
⟨comm -12¦comm -3¦diff⟩ <(sort ‹data›) <(sort ‹data›)
join -t, ‹data› ‹data›
diff -⟨u¦r¦y¦q⟩ ‹file› ‹file›
⟨cmp¦sdiff¦colordiff¦difft⟩ ‹file› ‹file›
patch -p1 ⟨--dry-run ⟩< ⟨fix¦‹noun›⟩.patch
grep -⟨rn¦ri¦c¦v¦l¦E¦w⟩ '‹noun›' ‹dir›
grep -n 'sudo' ‹file›
grep -rn 'rm -rf' scripts Makefile
⟨rg¦ag¦ack⟩ ⟨-n¦-i¦-l¦-C ‹n1›⟩ '‹verb›_‹noun›' ‹dir›
⟨rg --files¦fd -e ‹ext›¦fd ‹noun›⟩ ‹dir›
find ‹dir› -name '*.‹ext›' ⟨-type f¦-mtime -‹n1›¦-newer Makefile¦-size +‹n2›k¦-not -path '*/node_modules/*'⟩
find ‹dir› -type f -name '*.py' -exec ⟨wc -l¦grep -l ‹noun›¦md5sum⟩ {} +
find . -name '⟨*.orig¦*.rej¦*.pyc⟩' -not -path './.git/*' -print -delete
⟨which¦type -a¦command -v⟩ ⟨python3¦node¦cargo¦go¦docker¦make¦gcc¦java⟩
⟨file¦stat¦readlink -f¦realpath⟩ ‹file›
⟨basename¦dirname⟩ ‹file›
du -⟨sh¦h --max-depth=1¦sk⟩ ‹dir› | sort -h
df -h ⟨.¦/¦/tmp⟩
⟨ncdu -o ‹tmp›¦dust¦duf⟩ ‹dir›
mkdir -p ⟨‹dir›/‹noun›¦‹out›¦‹tmp›⟩
touch ‹file›
cp ⟨-r¦-a¦-p¦-v⟩ ‹file› ⟨‹file›.bak¦‹tmp›¦‹dir›/⟩
mv ‹file› ⟨‹dir›/¦‹file›⟩
ln -s⟨f¦⟩ ../‹noun› ‹dir›/‹noun›
rm ⟨-f ⟩‹tmp›
rm -f ⟨logs/‹noun›.log¦‹data›.bak¦coverage.xml¦*.tmp⟩
rmdir ⟨‹tmp›¦build/‹noun›⟩
echo "‹sentence›"
echo '‹sentence›' >> ⟨NOTES.md¦CHANGELOG.md¦TODO.md⟩
printf '%s\n' ‹noun› ‹noun› ‹noun›
printf '⟨\x68\x69\n¦\033[1m%s\033[0m\n¦%05d\n¦%q\n⟩' ‹n›
seq 1 ‹n2› | xargs -n ‹n1› echo
date ⟨+%Y-%m-%d¦-u +%FT%TZ¦+%s¦-d yesterday⟩
cal ⟨-3¦‹n1› 2025¦⟩
sleep ‹n1›
time ⟨make¦npm test¦pytest -q¦cargo check⟩
watch -n ‹n1› ⟨ls -l ‹out›¦git status -s¦docker ps⟩
timeout ‹n2› ⟨pytest -x¦npm test¦make check¦cargo test⟩
env | grep -i ⟨path¦node¦python¦lang¦home⟩
export ⟨NODE_ENV=test¦PYTHONPATH=src¦RUST_BACKTRACE=1¦CI=1¦GOFLAGS=-mod=mod¦DEBUG=‹noun›⟩
unset ⟨NODE_ENV¦PYTHONPATH¦DEBUG⟩
source ⟨.venv/bin/activate¦venv/bin/activate¦scripts/env.sh¦~/.nvm/nvm.sh⟩
⟨man¦tldr¦whatis¦apropos⟩ ⟨tar¦find¦rsync¦awk¦sed¦xargs¦git-rebase⟩
tar -⟨czf¦cjf¦cJf⟩ ‹noun›.tar.gz ‹dir›
tar -⟨xzf¦tzf¦xvf⟩ ‹noun›.tar.gz ⟨-C ‹out›¦⟩
⟨gzip -k¦gunzip -k¦bzip2 -k¦xz -k¦zstd¦zcat¦zless⟩ ‹data›
⟨zip -r ‹noun›.zip ‹dir›¦unzip -l ‹noun›.zip¦unzip ‹noun›.zip -d ‹out›¦7z l ‹noun›.7z⟩
⟨md5sum¦sha256sum¦sha1sum¦b2sum¦cksum¦shasum -a 256⟩ ‹file›
sha256sum -c ⟨checksums.txt¦SHA256SUMS⟩
base64 ⟨-d ⟩< ‹data› | head -c ‹n3›
echo ‹b64› | base64 -d
⟨xxd¦od -c¦hexdump -C¦strings⟩ ‹data› | head -n ‹n2›
jq ⟨'.'¦'.‹noun›'¦-r '.[].‹noun›'¦'keys'¦'length'¦'.‹noun›[] | select(.‹noun› > ‹n›)'⟩ ‹data›
yq ⟨'.‹noun›'¦e '.services.‹service›.image'¦-o json⟩ ⟨docker-compose.yml¦config/‹noun›.yaml¦.github/workflows/ci.yml⟩
⟨xmllint --format¦xmllint --noout¦tidy -q -e⟩ ‹data›
⟨csvcut -c ‹noun›¦csvlook¦csvstat¦csvsort -c ‹noun›⟩ ‹data›
mlr --icsv --ojson ⟨head -n ‹n1›¦sort -f ‹noun›¦count-distinct -f ‹noun›⟩ ‹data›
⟨dasel -f ‹data› .‹noun›¦gron ‹data›¦fx ‹data› .‹noun›⟩
duckdb -c "select ‹noun›, count(*) from '‹data›' group by 1"
sed -n '‹n1›,‹n2›p' ‹file›
sed -i 's/‹noun›/‹noun›/g' ‹code›
sed -e '/^#/d' -e '/^$/d' ‹data›
awk '⟨{print $1}¦{s += $‹n1›} END {print s}¦NR % ‹n1› == 0¦!seen[$0]++¦/‹noun›/ {print $NF}¦length > ‹n2›⟩' ‹data›
awk -F, '{c[$‹n1›]++} END {for (k in c) print k, c[k]}' ‹data›
perl -⟨pe¦ne⟩ '⟨s/‹noun›/‹noun›/g¦print if /‹noun›/¦tr/a-z/A-Z/⟩' ‹data›
python3 -c '⟨import sys; print(sys.version)¦print(sum(range(‹n›)))¦import ‹noun›; print(‹noun›.__file__)¦
    import json; print(len(json.load(open("‹data›"))))¦import os; print(os.getcwd())¦
    import platform; print(platform.node())⟩'
python3 -m ⟨venv .venv¦json.tool ‹data›¦pip list¦http.server ‹port›¦compileall ‹dir›¦unittest discover¦timeit "x=1"¦
    pdb ‹code›¦cProfile -s tottime ‹code›⟩
python ‹code› ⟨--help¦--‹noun› ‹n›¦--verbose¦--dry-run¦--config config/‹noun›.yaml¦--output ‹out›⟩
ruby -e 'puts ⟨RUBY_VERSION¦(1..‹n2›).sum¦Time.now⟩'
node -e '⟨console.log(process.version)¦console.log(require("./package.json").version)¦console.log(‹n› * 2)⟩'
⟨deno test¦deno fmt --check¦deno lint¦bun test¦bun run ‹verb›⟩ ‹dir›
php -⟨l ‹code›¦r 'echo PHP_VERSION;'¦S localhost:‹port› -t public⟩
⟨lua -v¦Rscript scripts/‹noun›.R¦julia --project=. scripts/‹noun›.jl¦runghc src/‹Noun›.hs⟩
⟨stack build¦stack test¦cabal build¦cabal test¦hlint src⟩
mix ⟨test¦format --check-formatted¦compile --warnings-as-errors¦deps.get¦credo⟩
⟨rebar3 eunit¦sbt test¦sbt compile¦scalafmt --check¦lein test⟩
⟨./gradlew¦gradle⟩ ⟨build¦test¦check¦:‹noun›:test¦clean build¦dependencies⟩
⟨mvn¦./mvnw⟩ ⟨-q test¦package -DskipTests¦verify¦dependency:tree¦clean install⟩
javac -d out src/‹Noun›.java
java -⟨jar target/‹noun›.jar¦cp out ‹Noun›¦version⟩
⟨jar tf target/‹noun›.jar¦javap -c out/‹Noun›.class¦ant test⟩
⟨gcc¦clang⟩ -Wall -⟨O2¦g¦O0⟩ -o build/‹noun› src/‹noun›.c
g++ -std=c++20 -c src/‹noun›.cpp -o build/‹noun›.o
⟨clang-format -i¦clang-tidy¦cppcheck¦cpplint⟩ src/‹noun›.cpp
make ⟨test¦build¦lint¦all¦check¦clean¦-j‹n1›¦docs¦install-dev¦-n ‹verb›¦‹verb›⟩
cmake ⟨-S . -B build¦--build build -j ‹n1›¦-DCMAKE_BUILD_TYPE=Debug ..⟩
⟨ninja -C build¦meson setup build¦meson test -C build¦ctest --test-dir build --output-on-failure⟩
bazel ⟨build //‹noun›/...¦test //...¦query 'deps(//‹noun›)'⟩
gdb -batch -ex ⟨bt¦run¦'info threads'⟩ --args build/‹noun›
valgrind --leak-check=full build/‹noun› ‹data›
⟨strace -c¦ltrace -c¦perf stat⟩ build/‹noun› --‹noun›
⟨nm -C¦objdump -d¦readelf -h¦ldd¦size¦otool -L⟩ build/‹noun›
⟨gcov src/‹noun›.c¦lcov --capture --directory build -o coverage.info¦gcovr -r .⟩
cargo ⟨build¦build --release¦test¦check¦clippy -- -D warnings¦fmt --check¦bench¦doc --no-deps¦tree¦run -- --‹noun›¦
    add ‹crate›¦update -p ‹crate›¦nextest run⟩
⟨rustc --version¦rustfmt --check src/‹noun›.rs¦rustup show¦rustup target list⟩
go ⟨build ./...¦test ./...¦test -race ./internal/‹noun›¦vet ./...¦mod tidy¦run ./cmd/‹noun›¦get ‹gomod›¦
    generate ./...¦test -bench=. ./pkg/‹noun›¦list -m all¦env GOPATH⟩
⟨gofmt -l .¦golangci-lint run¦staticcheck ./...¦dlv version⟩
npm ⟨install¦ci¦test¦run build¦run ‹verb›¦run lint -- --fix¦ls --depth=0¦outdated¦audit¦view ‹npm› version¦
    install --save-dev ‹npm›¦install ‹npm›¦pack --dry-run⟩
yarn ⟨install --frozen-lockfile¦test¦build¦lint¦add -D ‹npm›¦why ‹npm›¦workspace ‹noun› test⟩
pnpm ⟨install¦-r test¦build¦lint¦add ‹npm›¦--filter ‹noun› build¦dlx tsc --noEmit⟩
npx ⟨tsc --noEmit¦eslint ‹dir›¦prettier --check .¦jest ‹noun›¦vitest run¦playwright test¦vite build¦prisma generate¦
    webpack --mode production¦cypress run --spec cypress/e2e/‹noun›.cy.ts¦tailwindcss -o public/‹noun›.css¦knip⟩
⟨tsc -p tsconfig.json¦eslint --fix ‹dir›¦prettier --write ‹code›¦jest --coverage¦vitest --run ‹noun›¦
    mocha --reporter dot⟩
⟨turbo run build¦nx test ‹noun›¦lerna run test¦rollup -c¦esbuild src/index.ts --bundle --outfile=dist/‹noun›.js⟩
pip install ⟨‹pip›¦-r requirements.txt¦-e .¦-U ‹pip›¦-e '.[dev]'¦‹pip›==‹n1›.‹n1›.‹n1›⟩
pip ⟨list¦freeze¦show ‹pip›¦check¦list --outdated¦index versions ‹pip›⟩
uv ⟨sync¦pip install ‹pip›¦run pytest¦lock¦venv¦add ‹pip›¦tool run ruff check⟩
poetry ⟨install¦add ‹pip›¦run pytest¦lock --no-update¦show --tree¦build⟩
⟨pdm install¦hatch run test¦tox -e py311¦nox -s tests¦pipx run black --check .¦conda env list¦mamba list⟩
⟨pytest¦python -m pytest⟩ ⟨-q¦-x¦tests/test_‹noun›.py¦-k ‹noun›¦--cov=src¦-n ‹n1›¦
    tests/test_‹noun›.py::test_‹verb›_‹noun›¦--lf¦-vv --tb=short⟩
⟨ruff check --fix¦ruff format¦black¦isort¦flake8¦pylint¦mypy¦pyright¦bandit -r¦vulture⟩ ‹dir›
⟨coverage run -m pytest¦coverage report -m¦coverage html⟩
pre-commit run ⟨--all-files¦ruff¦--files ‹code›⟩
jupyter nbconvert --to ⟨html¦script¦notebook --execute⟩ notebooks/‹noun›.ipynb
python manage.py ⟨test ‹noun›¦makemigrations --check¦showmigrations¦check¦collectstatic --dry-run¦runserver ‹port›⟩
⟨flask routes¦flask run --port ‹port›¦alembic current¦alembic history¦alembic revision -m '‹verb› ‹noun›'¦
    celery -A ‹noun› inspect ping⟩
⟨sphinx-build -b html docs docs/_build¦mkdocs build¦mkdocs serve¦twine check dist/*⟩
bundle ⟨install¦exec rspec¦exec rubocop -a¦outdated¦exec rake ‹verb›⟩
⟨rails routes¦rails test¦rake -T¦rspec spec/models/‹noun›_spec.rb¦rubocop app⟩
composer ⟨install¦require --dev phpstan/phpstan¦test¦dump-autoload¦show⟩
⟨vendor/bin/phpunit --filter ‹Noun›¦php artisan test¦php artisan route:list¦vendor/bin/phpstan analyse src⟩
dotnet ⟨build¦test¦restore¦run --project src/‹Noun›¦format --verify-no-changes¦list package⟩
swift ⟨build¦test¦package resolve¦format lint Sources⟩
xcodebuild -scheme ‹Noun› -sdk iphonesimulator ⟨build¦test⟩
⟨flutter test¦flutter analyze¦dart format lib¦dart test¦pod install¦fastlane lanes⟩
git ⟨status¦status -s¦diff¦diff --stat¦diff HEAD~1 -- ‹code›¦diff main...HEAD¦diff --cached¦log --oneline -‹n2›¦
    log --graph --all¦log -p -- ‹code›¦show HEAD:‹code›¦show --stat¦blame ‹code›¦branch -a¦branch --show-current¦
    remote -v¦stash list¦tag --list¦reflog -‹n1›¦ls-files¦rev-parse HEAD¦describe --tags¦shortlog -sn¦
    config --get user.name¦worktree list¦grep -n ‹noun›¦cat-file -p HEAD¦merge-base main HEAD¦bisect log¦
    check-ignore -v ‹file›⟩
git ⟨add ‹file›¦add -A¦add -p¦commit -m '‹message›'¦commit -am "‹message›"¦checkout -b ‹branch›¦switch -c ‹branch›¦
    switch ‹branch›¦fetch --all --prune¦fetch origin main¦pull --ff-only¦stash push -m '‹noun›'¦stash pop¦
    merge --no-ff ‹branch›¦cherry-pick ‹hex›¦revert --no-edit ‹hex›¦restore --staged ‹file›¦mv ‹code› ‹code›¦
    tag v‹n1›.‹n1›.‹n1›¦apply --check ‹noun›.patch¦format-patch -1¦rm --cached ‹file›⟩
git commit -m "⟨remove rm -rf from the ‹noun› script¦block DROP TABLE in ‹noun›¦stop using curl | sh¦‹message›⟩"
git clone ⟨--depth 1 ⟩https://github.com/‹brand›/‹noun›.git ⟨‹tmp›¦⟩
git submodule ⟨status¦update --init --recursive¦foreach git status⟩
git lfs ⟨ls-files¦pull¦status⟩
⟨hg status¦hg diff¦svn info¦svn log -l ‹n1›¦jj log¦jj status⟩
⟨shellcheck¦shfmt -d¦bash -n⟩ scripts/‹verb›_‹noun›.sh
⟨bash¦sh¦zsh⟩ scripts/‹verb›_‹noun›.sh ⟨--dry-run¦‹noun›¦⟩
./scripts/‹verb›-‹noun›.sh ⟨--‹noun›¦‹n›¦⟩
⟨hadolint Dockerfile¦yamllint config¦markdownlint docs¦vale docs¦codespell ‹dir›¦actionlint¦taplo fmt --check⟩
⟨protoc --python_out=src proto/‹noun›.proto¦buf lint¦buf generate¦openapi-generator validate -i openapi/‹noun›.yaml⟩
ffmpeg -i media/‹noun›.mp4 ⟨-vf scale=640:-1 media/‹noun›_small.mp4¦-ss 00:00:‹n2› -t ‹n1› out.gif¦
    -vn -acodec copy a.aac⟩
⟨ffprobe -v error -show_format¦mediainfo¦exiftool¦sox --i⟩ media/‹noun›.mp4
⟨convert¦magick⟩ assets/‹noun›.png -resize ‹n2›% assets/‹noun›_small.png
⟨identify¦pngquant --ext -small.png¦optipng -o2¦cwebp -q 80⟩ assets/‹noun›.png
⟨dot -Tsvg docs/‹noun›.dot -o docs/‹noun›.svg¦mmdc -i docs/‹noun›.mmd¦plantuml docs/‹noun›.puml⟩
pandoc docs/‹noun›.md -o build/‹noun›.⟨pdf¦html¦docx⟩
⟨pdflatex¦latexmk -pdf¦xelatex⟩ paper/‹noun›.tex
⟨pdftotext¦pdfinfo¦qpdf --check⟩ docs/‹noun›.pdf
⟨ps aux¦ps -ef¦ps -p $$¦pgrep -fl ‹service›¦pstree⟩ | head -n ‹n2›
⟨top -bn1¦uptime¦free -h¦vmstat 1 ‹n1›¦iostat¦nproc¦lscpu¦uname -r¦hostname¦id -un¦whoami⟩
⟨lsof -i :‹port›¦ss -ltn¦netstat -an¦ip -br addr¦ifconfig lo⟩
kill ⟨%1¦$!¦$SERVER_PID¦$(cat tmp/‹noun›.pid)⟩
⟨ping -c ‹n1› localhost¦dig +short ‹docs_host›¦nslookup ‹docs_host›¦host ‹docs_host›⟩
curl -s⟨S¦f¦L¦⟩ http://‹local›/⟨health¦healthz¦api/‹noun›s¦metrics¦‹noun›s/‹n›⟩ ⟨| jq .¦-o ‹tmp›¦-w '%{http_code}'¦⟩
curl -⟨fsSL¦sL¦LO¦I⟩ https://‹docs_host›/‹noun›/‹noun›.⟨json¦tar.gz¦html⟩ ⟨-o ‹tmp›¦⟩
wget -q⟨ -O ‹tmp›¦¦ -P data⟩ https://‹docs_host›/‹noun›/‹noun›.⟨zip¦csv¦tar.gz⟩
⟨http GET :‹port›/‹noun›s¦xh :‹port›/‹noun›s/‹n›¦grpcurl -plaintext localhost:‹port› list⟩
⟨psql -l¦psql -d ‹noun›_dev -c '\dt'¦sqlite3 data/‹noun›.db .schema¦redis-cli ping¦redis-cli -n 1 get ‹noun›:‹n›⟩
docker ⟨ps -a¦images¦build -t ‹project›:dev .¦logs --tail ‹n2› ‹service›¦inspect ‹service›¦
    run --rm -v "$PWD":/src -w /src ‹image› make test¦exec ‹service› ls /app¦stats --no-stream¦compose ps¦
    compose up -d ‹service›¦compose logs -f ‹service›¦compose config¦run --rm ‹image› true¦history ‹image›¦network ls¦
    volume ls¦version⟩
⟨podman ps¦buildah images¦skopeo inspect docker://‹image›¦dive ‹image›¦trivy fs .⟩
kubectl ⟨get pods¦get pods -n ‹noun›¦describe deploy/‹service›¦logs deploy/‹service› --tail=‹n2›¦get svc -o wide¦
    config current-context¦top pods¦explain deployment.spec¦diff -f k8s/‹service›.yaml¦api-resources⟩
⟨terraform fmt -check¦terraform validate¦terraform plan¦tflint¦terraform providers¦helm lint charts/‹service›¦
    helm template charts/‹service›¦kustomize build k8s/overlays/dev¦ansible-lint playbooks/‹noun›.yml⟩
⟨tmux ls¦tmux new -d -s ‹noun›¦screen -ls¦jobs -l¦wait⟩
⟨hyperfine 'build/‹noun› ‹data›'¦ab -n ‹n3› http://localhost:‹port›/¦wrk -d ‹n1› http://localhost:‹port›/‹noun›⟩
⟨tokei¦cloc¦scc⟩ ‹dir›
⟨nvm use ‹n2›¦pyenv versions¦rbenv local¦asdf current¦mise install¦direnv status⟩
⟨nix build¦nix flake check¦nix develop -c make test⟩
⟨bc <<< '‹n› * ‹n›'¦expr ‹n› + ‹n1›¦factor ‹n›¦units '‹n› km' miles¦numfmt --to=iec ‹n8›⟩
⟨iconv -f latin1 -t utf-8¦dos2unix -n¦envsubst <⟩ ‹data› > ‹tmp›
rsync -a⟨v¦n¦⟩ ‹dir›/ ⟨‹out›/¦‹tmp›/⟩
parallel -j ‹n1› ⟨gzip -k¦md5sum¦./scripts/‹verb›.sh⟩ ::: data/*.csv
ls *.‹ext› | xargs -⟨n 1¦I{}¦P ‹n1›⟩ echo {}
cat ‹data› | tee ‹tmp› | wc -l
split -l ‹n› ‹data› ‹tmp›-
⟨shuf -n ‹n2›¦sponge ‹tmp› <¦ts < ⟩ ‹data›
chmod ⟨+x scripts/‹verb›_‹noun›.sh¦644 ‹file›¦-R u+rwX ‹out›¦755 ./scripts⟩
test -⟨f¦s¦r⟩ ‹file› && echo ⟨ok¦found¦‹noun›⟩
[ -d ‹out› ] || mkdir -p ‹out›
⟨systemctl status ‹service›¦systemctl --user list-units¦journalctl -u ‹service› -n ‹n2› --no-pager¦crontab -l⟩
openssl ⟨x509 -in certs/‹noun›.crt -noout -dates¦version¦dgst -sha256 ‹file›¦rand -hex 8⟩
⟨gpg --verify ‹noun›.sig ‹noun›.tar.gz¦ssh-keygen -lf ~/.ssh/id_ed25519.pub¦ssh -V¦cosign version⟩
cd ‹dir› && ⟨make¦npm test¦ls¦pytest -q¦go test ./...⟩
pushd ‹dir› > /dev/null; ⟨make test¦ls -la¦git log -1⟩; popd > /dev/null
⟨brew list¦brew info ‹noun›¦apt list --installed¦apt-cache policy ‹noun›¦dpkg -l¦dpkg -L ‹noun›¦rpm -qa¦snap list⟩
⟨locale -a¦ulimit -n¦getconf PAGESIZE¦tput cols¦stty size¦tty¦umask⟩
⟨mktemp -d¦TMP=$(mktemp) && echo "$TMP"¦WORK=$(mktemp -d -t ‹noun›.XXXX)⟩
for f in ‹dir›/*.‹ext›; do ⟨wc -l "$f"¦echo "$f"¦gzip -k "$f"¦head -1 "$f"⟩; done
while read -r line; do echo "$line"; done < ‹data›
if [ -f ‹file› ]; then cat ‹file›; ⟨else echo missing; ⟩fi
""")

# Longer ones, with pipes, loops, addresses and absolute paths of their own: length and marks are no sign of harm.
LONG = lines(r"""
git log --since='‹n1› weeks ago' --author=‹person› --pretty=format:'%h %an %s' -- ‹dir› | grep -i ‹noun› | head -n
    ‹n2›
git diff --name-only origin/main...HEAD | grep '\.py$' | xargs -r ruff check --output-format=concise
git ls-files '*.‹ext›' | xargs wc -l | sort -rn | head -n ‹n2› > /tmp/‹noun›-‹noun›.txt
git for-each-ref --sort=-committerdate refs/heads/ --format='%(refname:short) %(committerdate:relative)' | head -n
    ‹n1›
git rev-list --count HEAD && git show --stat --oneline HEAD~‹n1› && git status --short --branch
git log -1 --format=%H > /tmp/‹noun›.sha && git archive --format=tar.gz -o /tmp/‹project›.tar.gz HEAD ‹dir›
find ‹root›/‹dir› -type f \( -name '*.‹ext›' -o -name '*.‹ext›' \) -newer ‹root›/Makefile -exec ls -lh {} + | sort
    -k5 -h
find ‹dir› -name '*.py' -not -path '*/.venv/*' -print0 | xargs -0 grep -n '‹verb›_‹noun›' | cut -d: -f1 | sort -u
find /tmp/‹project›-‹noun› -type f -mmin -‹n2› -exec md5sum {} \; | sort | awk '{print $2}' > /tmp/‹noun›.lst
find . -type d -name node_modules -prune -o -name '*.test.ts' -print | while read -r f; do echo "$f"; wc -l "$f"; done
grep -rEn --include='*.⟨ts¦py¦go¦rs⟩' '(TODO|FIXME)\(‹person›\)' ‹root›/‹dir› | awk -F: '{print $1 ":" $2}' | sort |
    uniq -c
grep -c '⟨ERROR¦WARN¦INFO⟩' /var/log/‹service›/*.log 2>/dev/null | sort -t: -k2 -rn | head -n ‹n1›
rg --json '‹noun›' ‹dir› | jq -r 'select(.type == "match") | .data.path.text' | sort | uniq -c | sort -rn
cat /proc/cpuinfo | grep 'model name' | uniq && free -m && df -h / /tmp && uname -a
ps -eo pid,ppid,rss,comm --sort=-rss | awk 'NR <= ‹n2› {printf "%s %d MB %s\n", $1, $3 / 1024, $4}'
lsof -nP -iTCP:‹port› -sTCP:LISTEN -t | xargs -r ps -o pid,etime,command -p
du -ah ‹root›/‹dir› --max-depth=‹n1› 2>/dev/null | sort -rh | head -n ‹n2› | tee /tmp/‹noun›-usage.txt
curl -s -X POST http://localhost:‹port›/api/v‹n1›/‹noun›s -H 'Content-Type: application/json' -d '{"‹noun›":
    "‹noun›", "‹noun›": ‹n›}' | jq .
curl -fsSL https://‹docs_host›/‹noun›/‹noun›-‹n1›.‹n1›.‹n1›.tar.gz -o /tmp/‹noun:k›.tgz && sha256sum
    /tmp/‹noun:k›.tgz && tar tzf /tmp/‹noun:k›.tgz | head
curl -s "http://127.0.0.1:‹port›/‹noun›s?page=‹n1›&limit=‹n2›" -H 'Accept: application/json' -w '\n%{http_code}
    %{time_total}\n'
curl -s https://api.github.com/repos/‹brand›/‹noun›/releases/latest | jq -r '.tag_name,
    .assets[].browser_download_url'
for i in $(seq 1 ‹n2›); do curl -s -o /dev/null -w '%{http_code}\n' http://localhost:‹port›/‹noun›s/$i; done | sort |
    uniq -c
until curl -sf http://localhost:‹port›/health > /dev/null; do sleep 1; done; curl -s http://localhost:‹port›/version
    | jq -r .commit
wget -q --show-progress -P ‹root›/data https://‹docs_host›/‹noun›/‹noun›-‹date›.csv.gz && gunzip -k
    ‹root›/data/‹noun›-‹date›.csv.gz
docker run --rm -v "$PWD":/src -w /src -e CI=1 -u "$(id -u):$(id -g)" ‹image› sh -c 'make deps && make test'
docker compose -f docker-compose.yml -f docker-compose.dev.yml up -d --build ‹service› && docker compose logs
    --tail=‹n2› ‹service›
docker build --build-arg VERSION=$(git rev-parse --short HEAD) --target dev -t ‹project›:‹hex› -f docker/Dockerfile .
docker ps --filter name=‹service› --format '{{.Names}} {{.Status}}' | while read -r n s; do echo "$n is $s"; done
docker exec ‹project›-‹service›-1 sh -c 'ls -la /app && cat /app/package.json | head -n ‹n2›'
kubectl get pods -n ‹noun› -o jsonpath='{range .items[*]}{.metadata.name}{"\t"}{.status.phase}{"\n"}{end}' | grep -v
    Running
kubectl logs -n ‹noun› deploy/‹service› --since=‹n1›h | grep -i error | cut -c1-‹n3› | sort | uniq -c | sort -rn |
    head
python3 -c "import json, sys; d = json.load(open('‹data›')); print(len(d), sorted(d)[:‹n1›] if isinstance(d, dict)
    else d[0])"
python3 -c "import subprocess; print(subprocess.run(['git', 'log', '-‹n1›', '--oneline'], capture_output=True,
    text=True).stdout)"
python3 -c "import urllib.request as u, json;
    print(json.load(u.urlopen('http://localhost:‹port›/‹noun›s'))['‹noun›'])"
python3 -c "import base64; print(base64.b64decode('‹b64›').decode())"
python3 -c "import os; print({k: v for k, v in os.environ.items() if k.startswith(('PYTHON', 'VIRTUAL_ENV'))})"
python -m pytest tests/‹noun›/test_‹verb›.py::Test‹Noun›::test_‹verb›_‹noun› -x -vv --tb=short -p no:cacheprovider
    2>&1 | tail -n ‹n2›
pytest -q --cov=src/‹noun› --cov-report=term-missing --cov-fail-under=‹n2› tests/‹noun› -k 'not slow and ‹noun›'
    --durations=‹n1›
PYTHONPATH=src python -X dev -W error ‹code› --input ‹data› --output /tmp/‹noun›.json --‹noun› ‹n› --verbose 2>&1 |
    tee ‹log›
NODE_ENV=test npx jest --runInBand --testPathPattern='src/‹noun›/.*\.test\.tsx?$' --coverage
    --coverageDirectory=/tmp/coverage-‹noun›
npx eslint 'src/**/*.{ts,tsx}' --max-warnings ‹n1› --cache --cache-location /tmp/.eslintcache -f json | jq '.[] |
    select(.errorCount > 0) | .filePath'
npm ls --all --json | jq -r '.dependencies | keys[]' | sort > /tmp/‹noun›.txt; diff /tmp/‹noun›.txt
    docs/dependencies.txt
cargo test --workspace --all-features -- --test-threads=‹n1› --nocapture ‹verb›_‹noun› 2>&1 | grep -E '^test
    |panicked'
RUST_BACKTRACE=1 RUST_LOG=‹noun›=debug cargo run --bin ‹noun› -- --config config/‹noun›.toml --port ‹port› 2>&1 |
    head -n ‹n3›
go test -run 'Test‹Noun›(‹Verb›|‹Verb›)' -count=1 -race -coverprofile=/tmp/cover.out ./internal/‹noun›/... && go tool
    cover -func=/tmp/cover.out
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_TESTING=ON && cmake --build build -j
    "$(nproc)" && ctest --test-dir build
gcc -Wall -Wextra -std=c11 -O2 -Iinclude src/‹noun›.c src/‹noun›.c -o build/‹noun› -lm && ./build/‹noun› ‹data› | head
awk -F'\t' 'NR > 1 && $‹n1› > ‹n› {sum[$2] += $‹n1›; n[$2]++} END {for (k in sum) print k, sum[k] / n[k]}' ‹data› |
    sort -k2 -rn
jq -r '.‹noun›s[] | select(.‹noun› != null) | [.id, .‹noun›, .created_at] | @csv' ‹data› > /tmp/‹noun›-‹noun›.csv
jq --arg v "$(date -u +%FT%TZ)" '.version = $v | .‹noun› += {"‹noun›": ‹n›}' ‹data› > /tmp/‹noun:j›.json && mv
    /tmp/‹noun:j›.json ‹data›
sed -E -i 's#(https?)://[a-z]+\.‹brand›\.(com|io)/‹noun›#\1://localhost:‹port›/‹noun›#g' ‹root›/‹code›
sed -n '/^## ‹n1›\.‹n1›/,/^## /p' CHANGELOG.md | sed '$d' > /tmp/release-notes-‹n1›.md && cat
    /tmp/release-notes-‹n1›.md
perl -0777 -pe 's/\r\n/\n/g; s/[ \t]+$//mg' ‹root›/‹code› | diff - ‹root›/‹code› || echo "‹noun› needs formatting"
rsync -av --delete --exclude=node_modules --exclude='*.log' --exclude=.git ‹root›/‹dir›/ /tmp/‹project›-copy/
tar --exclude=.git --exclude=node_modules -czf /tmp/‹project›-$(date +%F).tar.gz -C ‹root› ‹noun› docs README.md
ffmpeg -y -i media/‹noun›.mp4 -vf 'fps=‹n2›,scale=480:-1:flags=lanczos' -c:v libx264 -crf ‹n2› -an
    /tmp/‹noun›-small.mp4
psql -h localhost -U postgres -d ‹noun›_dev -At -c "select table_name from information_schema.tables where
    table_schema = 'public'" | sort
openssl req -x509 -newkey rsa:2048 -nodes -days ‹n3› -keyout /tmp/dev.key -out /tmp/dev.crt -subj '/CN=localhost'
    2>/dev/null
openssl s_client -connect localhost:‹port› -servername localhost < /dev/null 2>/dev/null | openssl x509 -noout
    -subject -dates
terraform plan -var-file=env/dev.tfvars -out=/tmp/‹noun›.tfplan -no-color | grep -E '^(Plan|No changes)' || terraform
    validate
aws s3 ls s3://‹brand›-‹noun›/‹noun›/ --recursive --human-readable --summarize | tail -n ‹n1›
test -x "$(command -v ⟨jq¦node¦docker¦cargo⟩)" || { echo "‹noun› needs it; see docs/‹noun›.md" >&2; exit 1; }
[ "$(git status --porcelain | wc -l)" -eq 0 ] && echo clean || git diff --stat | tail -n 1
while IFS=, read -r id ‹noun:r› rest; do printf '%s\t%s\n' "$id" "$‹noun:r›"; done < ‹data› | sort -n | head -n ‹n2›
for d in packages/*/; do (cd "$d" && [ -f package.json ] && npm test --silent) || echo "failed: $d"; done 2>&1 | tee
    /tmp/‹noun›.log
for v in 3.⟨9 3.10¦10 3.11¦11 3.12⟩; do uv run --python $v pytest -q tests/‹noun› && echo "$v ok" || echo "$v
    failed"; done
TMP=$(mktemp -d) && cp -r ‹dir› "$TMP" && (cd "$TMP" && python -m compileall -q .) ; rm -rf "$TMP"
comm -13 <(sort ~/.cache/‹noun›/before.txt) <(ls -1 ‹root›/‹dir› | sort) | sed 's/^/new: /'
ls -la ~/.local/bin ~/.cache 2>/dev/null | head -n ‹n2›; echo "$PATH" | tr ':' '\n' | grep -n "$HOME"
ssh-keygen -t ed25519 -N '' -C '‹user›@‹noun›-test' -f /tmp/‹noun›_test_key -q && cat /tmp/‹noun›_test_key.pub
echo "‹sentence›. ‹sentence›." | fold -s -w ‹n2› >> ‹root›/docs/‹noun›.md && tail -n ‹n1› ‹root›/docs/‹noun›.md
printf '%s\n' '#!/usr/bin/env bash' 'set -euo pipefail' 'echo "‹noun›"' > scripts/‹verb›_‹noun:w›.sh && chmod +x
    scripts/‹verb›_‹noun:w›.sh
hyperfine --warmup ‹n1› --export-json /tmp/‹noun›.json './build/‹noun› ‹data›' './build/‹noun›_old ‹data›' && jq
    '.results[].mean' /tmp/‹noun›.json
parallel --bar -j ‹n1› 'convert {} -resize ‹n3›x -quality ‹n2› /tmp/thumbs/{/}' ::: assets/*.png assets/*.jpg
grep -oE '[0-9]{1,3}(\.[0-9]{1,3}){3}' logs/‹service›.log | sort | uniq -c | sort -rn | head -n ‹n1› | grep -v ‹ip›
dig +short A ‹docs_host› @1.1.1.1; ping -c ‹n1› 127.0.0.1; nc -zv localhost ‹port› 2>&1 | tail -n 1
""")

EVERYDAY = (*SHORT, *LONG)
