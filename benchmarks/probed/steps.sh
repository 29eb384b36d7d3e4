# A shell script that reports its steps: sums of random numbers by awk.
steps=${1:-150}
i=0
while [ "$i" -lt "$steps" ]; do
  i=$((i + 1))
  awk -v seed="$i" 'BEGIN { srand(seed); for (k = 0; k < 400000; k++) s += rand(); print s > "/dev/null" }'
  [ -z "$LEADLINE_PROGRESS" ] || echo "step=$i total_steps=$steps t=$(date +%s.%N)" >> "$LEADLINE_PROGRESS"
done
