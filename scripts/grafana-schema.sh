#!/bin/sh
# Makes .cache/grafana-schema/schema.json, a strict JSON schema of classic dashboards, from the types that Grafana
# publishes. Needs node and npm; the tests that use it are skipped without it.
set -eu
cd "$(dirname "$0")/.."
folder=.cache/grafana-schema
mkdir -p "$folder"
cat > "$folder/package.json" <<'EOF'
{"private": true, "dependencies": {"@grafana/schema": "13.2.3", "ts-json-schema-generator": "2.4.0"}}
EOF
cd "$folder"
if ! command -v npm > /dev/null; then
    echo "no npm on this machine" > unavailable
elif npm install --no-audit --no-fund --silent > install.log 2>&1 &&
    npx --no-install ts-json-schema-generator --no-type-check --type Dashboard --out schema.tmp \
        --path node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen.d.ts > make.log 2>&1; then
    mv schema.tmp schema.json
    rm -rf node_modules unavailable
    exit 0
else
    echo "npm could not fetch or turn the types into a schema; see $folder/*.log" > unavailable
fi
echo "grafana-schema: $(cat unavailable)" >&2
exit 1
